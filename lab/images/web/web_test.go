package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// TestJobs runs the program as a pod does, on loopback, and sends requests to both ports.
func TestJobs(t *testing.T) {
	back, front := freeAddr(t), freeAddr(t)
	start(t, []string{"jobs"}, map[string]string{
		"API_ADDR": back, "FRONTEND_ADDR": front, "BACKEND_URL": "http://" + back, "GRACE": "1ms",
	})
	pod, err := os.Hostname()
	must(t, err)
	api := fmt.Sprintf(`{"job":"Instructor at Learnk8s","pod":%q}`+"\n", pod)
	if got := get(t, back, "/", ""); got != api {
		t.Errorf("the API says %q, want %q", got, api)
	}
	for accept, want := range map[string]string{
		"*/*":              "Back end:  " + pod,
		"application/json": fmt.Sprintf(`"pod":%q,"frontend":%q`, pod, pod),
		"text/html":        "<h1>Instructor at Learnk8s</h1>",
	} {
		if got := get(t, front, "/", accept); !strings.Contains(got, want) {
			t.Errorf("the front end, asked for %s, says %q, want %q", accept, got, want)
		}
	}
	if got := get(t, front, "/healthz", ""); got != "ok\n" {
		t.Errorf("/healthz says %q", got)
	}
}

func TestFrontendWithoutBackend(t *testing.T) {
	f := newFrontend("f", "http://"+freeAddr(t), slog.New(slog.DiscardHandler))
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), "connection refused") {
		t.Errorf("status %d, %q; want 502 and the reason", w.Code, w.Body)
	}
}

func TestHttpd(t *testing.T) {
	addr := freeAddr(t)
	start(t, []string{"httpd"}, map[string]string{"ADDR": addr, "GRACE": "1ms"})
	if got := get(t, addr, "/", ""); got != "<html><body><h1>It works!</h1></body></html>\n" {
		t.Errorf("httpd says %q", got)
	}
	resp, err := http.Get("http://" + addr + "/nothing")
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("/nothing gives %s", resp.Status)
	}
}

// TestTerminationLosesNothing opens new connections before and during the grace period, with one slow request in flight
// all the time.
func TestTerminationLosesNothing(t *testing.T) {
	addr := freeAddr(t)
	slow, release := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(slow)
			<-release
		}
		io.WriteString(w, "done")
	})
	const grace = 300 * time.Millisecond
	ctx, terminate := context.WithCancel(context.Background())
	defer terminate()
	ended := make(chan error, 1)
	go func() {
		ended <- serve(ctx, slog.New(slog.DiscardHandler), grace, server{name: "x", addr: addr, handler: handler})
	}()
	waitFor(t, addr)
	slowDone := make(chan error, 1)
	go func() {
		resp, err := http.Get("http://" + addr + "/slow")
		if err == nil {
			err = resp.Body.Close()
		}
		slowDone <- err
	}()
	<-slow
	begun := time.Now()
	terminate()
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for time.Since(begun) < grace {
		resp, err := fresh.Get("http://" + addr)
		if err != nil && time.Since(begun) >= grace {
			break // the request began within the grace period and took longer
		}
		if err != nil {
			t.Fatalf("a request within the grace failed: %v", err)
		}
		resp.Body.Close()
	}
	for end := time.Now().Add(5 * time.Second); ; {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			break // the grace period is over
		}
		c.Close()
		if time.Now().After(end) {
			t.Fatal("still accepting, 5 s after a grace of 0.3 s")
		}
	}
	close(release)
	if err := <-slowDone; err != nil {
		t.Errorf("the request under way failed: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestRunRefuses(t *testing.T) {
	none := func(string) string { return "" }
	if err := run(t.Context(), slog.New(slog.DiscardHandler), []string{"mail"}, none); err == nil {
		t.Error("an unknown role was accepted")
	}
	bad := func(string) string { return "soon" }
	if err := run(t.Context(), slog.New(slog.DiscardHandler), []string{"jobs"}, bad); err == nil || !strings.Contains(err.Error(), "5s") {
		t.Errorf("GRACE=soon gives %v, want advice", err)
	}
}

// start runs the program until the test ends.
func start(t *testing.T, args []string, env map[string]string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, slog.New(slog.NewTextHandler(t.Output(), nil)), args, func(k string) string { return env[k] })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	for key, addr := range env {
		if strings.HasSuffix(key, "ADDR") {
			waitFor(t, addr)
		}
	}
}

func waitFor(t *testing.T, addr string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return
		} else if time.Now().After(end) {
			t.Fatalf("not listening: %v", err)
		}
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

func get(t *testing.T, addr, path, accept string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+addr+path, nil)
	must(t, err)
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return string(body)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
