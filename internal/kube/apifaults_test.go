package kube

import (
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestTokenRotatedUnderWatch: the API server refuses the old token of the service account. The client then reads the
// new token, which the kubelet has written.
func TestTokenRotatedUnderWatch(t *testing.T) {
	t.Parallel()
	server := newStreamServer(t, city(1))
	var mu sync.Mutex
	valid, refused := "one", 0
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		ok := r.Header.Get("Authorization") == "Bearer "+valid
		if !ok {
			refused++
		}
		mu.Unlock()
		if !ok {
			fails(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)(w, r)
			return
		}
		server.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(secure.Close)
	t.Cleanup(secure.CloseClientConnections)
	account := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(account, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("token", "one")
	write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))
	cfg, err := Connection{Master: secure.URL, ContentType: "application/json", QPS: -1}.restConfig(account)
	if err != nil {
		t.Fatal(err)
	}
	s := newSource(Config{Log: slog.New(slog.DiscardHandler), Client: must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(cfg)), NodeName: "node-1", EmptyAfter: never})
	runUntilEnd(t, s)
	takeUntil(t, s, svcName("web-0"))

	write("token", "two")
	mu.Lock()
	valid = "two"
	mu.Unlock()
	server.change(city(2))
	takeUntil(t, s, svcName("web-1"))
	mu.Lock()
	defer mu.Unlock()
	if refused == 0 {
		t.Error("no request came with the old token: this proves nothing")
	}
}

// TestRightsWithdrawn: without the right to read, the objects stay. After the right returns, the changes are read.
func TestRightsWithdrawn(t *testing.T) {
	t.Parallel()
	server := newStreamServer(t, city(3))
	log := &testnet.Log{}
	s := against(t, server, slog.New(slog.NewTextHandler(log, nil)))
	takeUntil(t, s, svcName("web-0"), svcName("web-1"), svcName("web-2"))
	server.front(func(w http.ResponseWriter, r *http.Request) bool {
		fails(http.StatusForbidden, metav1.StatusReasonForbidden)(w, r)
		return true
	})
	server.change(city(4))
	until(t, "both kinds to be refused", func() bool {
		return log.Count("cannot read from the API server, will try again\" kind=services") > 0 &&
			log.Count("cannot read from the API server, will try again\" kind=endpointslices") > 0
	})
	if names := s.Take(); len(names) > 0 || s.services.Len() != 3 || s.slices.Len() != 3 {
		t.Errorf("changed: %v; %d Services, %d slices", names, s.services.Len(), s.slices.Len())
	}
	server.front(nil)
	takeUntil(t, s, svcName("web-3"))
	if got := addrsOf(s, svcName("web-3")); len(got) > 1 {
		t.Errorf("endpoints %v", got)
	}
}

// TestOverloaded: every kind waits as long as a busy API server asks for.
func TestOverloaded(t *testing.T) {
	t.Parallel()
	server := newStreamServer(t, city(1))
	var mu sync.Mutex
	first := map[string]time.Time{}
	server.front(func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		at, again := first[r.URL.Path]
		if !again {
			first[r.URL.Path] = time.Now()
			w.Header().Set("Retry-After", "1")
			fails(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)(w, r)
			return true
		}
		if rest := time.Second - time.Since(at); rest > 0 {
			t.Errorf("%s was asked for %v too early", r.URL.Path, rest)
		}
		return false
	})
	s := against(t, server, slog.New(slog.DiscardHandler))
	takeUntil(t, s, svcName("web-0"))
}

// TestSlowServer: an API server takes 2 s for each request. All kinds wait for it in parallel, including the optional
// kinds.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	server := newStreamServer(t, city(1))
	server.front(func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-time.After(2 * time.Second):
		case <-r.Context().Done():
		}
		return false
	})
	log := &testnet.Log{}
	s := against(t, server, slog.New(slog.NewTextHandler(log, nil)))
	takeUntil(t, s, svcName("web-0"))
	if _, known := s.Node(); !known || log.Count("starting without") > 0 {
		t.Errorf("the node is known: %v; %d lists are missing", known, log.Count("starting without"))
	}
}
