package jwt

import "time"

// SetClock makes a verifier take its time from now.
func (v *Verifier) SetClock(now func() time.Time) { v.now = now }
