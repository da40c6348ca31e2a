package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"
)

// metrics are served at an address of their own: whoever may call the tools need not
// see them, and the other way round.
type metrics struct {
	provider *sdk.MeterProvider
	server   *http.Server
}

// serveMetrics serves the metrics of a provider at addr, until stop is called. An addr
// without a host means the loopback interface.
func serveMetrics(e *env, addr string) (*metrics, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, misused("write it as :9464 or HOST:PORT", "--metrics: %w", err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return nil, failed(fmt.Errorf("metrics: %w", err), "")
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, failed(fmt.Errorf("metrics: %w", err), "is the address free, and of this machine?")
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	m := &metrics{
		provider: sdk.NewMeterProvider(sdk.WithReader(exporter)),
		server:   &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second},
	}
	go m.server.Serve(listener)
	fmt.Fprintf(e.stderr, "metrics on http://%s/metrics\n", listener.Addr())
	return m, nil
}

func (m *metrics) stop() error {
	return errors.Join(m.server.Close(), m.provider.Shutdown(context.Background()))
}
