package guard

import (
	"mime"
	"net/http"
	"strings"
)

// checkMedia refuses what is not JSON in UTF-8, and a client that would not take
// what it is answered with (basic/transports/streamable-http). The SDK refuses the
// same, but in plain text, which a client cannot tell from a proxy's, and it reads
// a compressed or recoded body as if it were plain.
func checkMedia(h http.Header) (status int, bad *badMessage) {
	media, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || media != "application/json" || len(h.Values("Content-Type")) > 1 {
		return http.StatusUnsupportedMediaType, invalid("Content-Type must be application/json")
	}
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return http.StatusUnsupportedMediaType, invalid("the charset must be utf-8")
	}
	if coding := h.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return http.StatusUnsupportedMediaType, invalid("the body must not be compressed")
	}
	if json, stream := accepts(h.Values("Accept")); !json || !stream {
		return http.StatusBadRequest, invalid("Accept must list application/json and text/event-stream")
	}
	return 0, nil
}

func accepts(values []string) (json, stream bool) {
	for _, value := range values {
		for item := range strings.SplitSeq(value, ",") {
			kind, _, _ := strings.Cut(item, ";")
			switch strings.ToLower(strings.TrimSpace(kind)) {
			case "application/json", "application/*":
				json = true
			case "text/event-stream", "text/*":
				stream = true
			case "*/*":
				json, stream = true, true
			}
		}
	}
	return json, stream
}
