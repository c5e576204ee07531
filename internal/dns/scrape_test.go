package dns

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin/metrics"
)

// TestGreedyScrapes: a pod that opens hundreds of connections to the port of metrics has a few of them at a time, in
// each server block and by TLS, and others are answered.
func TestGreedyScrapes(t *testing.T) {
	if !alone(t) {
		return
	}
	web, client := webConfig(t)
	path := corefile(t, `.:5338 {
 prometheus 127.0.0.1:9153
 hosts {
  192.0.2.9 a.example
 }
}
.:5339 {
 prometheus 127.0.0.1:9154 {
  tls %s
 }
 hosts {
  192.0.2.8 b.example
 }
}
`, web)
	serve(t, Config{Corefile: path})
	for _, url := range []string{"http://127.0.0.1:9153", "https://127.0.0.1:9154"} {
		_, to, _ := strings.Cut(url, "://")
		for range 200 {
			c, err := net.Dial("tcp", to)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
		text, err := getBy(client, url+"/metrics") // when it is answered, all before it have been accepted
		if err != nil || !strings.Contains(text, "coredns_build_info") {
			t.Errorf("%s: %v, %d bytes", url, err, len(text))
		}
		n := 0
		for _, c := range connections() {
			if c.port == netip.MustParseAddrPort(to).Port() {
				n++
			}
		}
		if n > scrapeConns {
			t.Errorf("%s has %d connections, want %d at most", url, n, scrapeConns)
		}
	}
}

// webConfig writes the file that `prometheus { tls FILE }` names, with a certificate, and returns a client that trusts it.
func webConfig(t *testing.T) (path string, client *http.Client) {
	t.Helper()
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	pair := srv.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path = filepath.Join(dir, "web.yml")
	for name, text := range map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"web.yml": []byte("tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path, srv.Client()
}

// TestConnectedAtStart: who connects to the port of metrics between CoreDNS's start and the limit, and says nothing, keeps
// no DNS server from starting.
func TestConnectedAtStart(t *testing.T) {
	if !alone(t) {
		return
	}
	m := metrics.New("127.0.0.1:9153")
	if err := m.OnStartup(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", m.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("GET")); err != nil {
		t.Fatal(err)
	}
	if err := replace(m); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = endScrapes() }()
	if text, err := get("http://" + m.Addr + "/metrics"); err != nil {
		t.Errorf("metrics: %v, %d bytes", err, len(text))
	}
}
