package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// drain is the time limit for requests in flight after a server has stopped accepting. Together with grace, it is well
// below the 30 seconds after which the kubelet kills.
const drain = 10 * time.Second

// server is one listener of the program.
type server struct {
	name    string
	addr    string
	handler http.Handler
}

// serve runs the servers until ctx ends, and then stops without losing a request:
//  1. For the grace period it still accepts connections, because some nodes still send some here. It closes each
//     connection after its answer, so that clients go elsewhere.
//  2. It stops accepting connections.
//  3. It finishes the requests in flight.
func serve(ctx context.Context, log *slog.Logger, grace time.Duration, servers ...server) error {
	running := make([]*http.Server, 0, len(servers))
	failed := make(chan error, len(servers))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() {
		for _, s := range running {
			s.Close()
		}
	}()
	for _, s := range servers {
		l, err := net.Listen("tcp", s.addr)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		log.Info("listening", "server", s.name, "address", l.Addr().String())
		h := &http.Server{Handler: logged(s.handler, log), ReadHeaderTimeout: 10 * time.Second}
		running = append(running, h)
		wg.Go(func() {
			if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("%s: %w", s.name, err)
			}
		})
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	log.Info("terminating: serving on until the nodes have heard of it", "grace", grace)
	for _, h := range running {
		h.SetKeepAlivesEnabled(false)
	}
	select {
	case err := <-failed:
		return err
	case <-time.After(grace): // no event tells when the last node knows
	}
	end, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	var err error
	for _, h := range running {
		err = errors.Join(err, h.Shutdown(end))
	}
	return err
}

// logged writes one line for each request in the usual form of web servers. `kubectl logs | grep GET` then shows the
// pod that processed a request. It leaves out health checks, which would hide the other lines.
func logged(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &recorder{ResponseWriter: w, status: http.StatusOK}
		start := time.Now()
		next.ServeHTTP(seen, r)
		if r.URL.Path == "/healthz" {
			return
		}
		log.Info(fmt.Sprintf("%s %s %d", r.Method, r.URL.Path, seen.status),
			"from", r.RemoteAddr, "host", r.Host, "took", time.Since(start).Round(time.Microsecond))
	})
}

// recorder records the status of a response.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// site returns a handler for one page at /, and the health check.
func site(page http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.Handle("/{$}", page)
	return mux
}
