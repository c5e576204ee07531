package kube

import (
	"crypto/tls"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestCAReplaced: the API server presents a certificate of a CA that was unknown when the agent started. The agent
// refuses it until the file of the service account contains that CA.
func TestCAReplaced(t *testing.T) {
	t.Parallel()
	server := newStreamServer(t, city(1))
	here := netip.MustParseAddr("127.0.0.1")
	oneCA, one := testnet.NewCA(t, here)
	twoCA, two := testnet.NewCA(t, here)
	var shown atomic.Pointer[tls.Certificate]
	shown.Store(one)
	secure := httptest.NewUnstartedServer(server.Config.Handler)
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	secure.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*shown.Load()}}, nil
	}}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	t.Cleanup(secure.CloseClientConnections)
	account := t.TempDir()
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(account, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("token", []byte("one"))
	write("ca.crt", oneCA)
	cfg, err := Connection{Master: secure.URL, ContentType: "application/json", QPS: -1}.restConfig(account)
	if err != nil {
		t.Fatal(err)
	}
	log := &testnet.Log{}
	s := newSource(Config{Log: slog.New(slog.NewTextHandler(log, nil)), Client: must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(cfg)), NodeName: "node-1", EmptyAfter: never})
	runUntilEnd(t, s)
	takeUntil(t, s, svcName("web-0"))

	shown.Store(two)
	secure.CloseClientConnections()
	until(t, "the certificate to be refused", func() bool { return log.Count("certificate signed by unknown authority") > 0 })
	write("ca.crt", append(oneCA, twoCA...))
	start := time.Now()
	go server.change(city(2)) // as soon as a watch is open
	takeUntil(t, s, svcName("web-1"))
	if took := time.Since(start); took > 2*maxPause {
		t.Errorf("the CA was read after %v", took)
	}
}
