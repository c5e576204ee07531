package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

// An authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{cert, key, x509.NewCertPool()}
	a.pool.AddCert(cert)
	return a
}

func (a *authority) issue(t testing.TB, names ...string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, n := range names {
		if u, err := url.Parse(n); err == nil && u.Scheme != "" {
			template.URIs = append(template.URIs, u)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// serveTLS runs a backend with a certificate.
func serveTLS(t testing.TB, cert *tls.Certificate, clients *x509.CertPool, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
	if clients != nil {
		s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, clients
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// over returns a client of TLS that speaks to the bench with a server name.
func (b *bench) over(version int, c *tls.Config) *http.Client {
	t := &http.Transport{
		Protocols: &http.Protocols{}, TLSClientConfig: c,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", b.port))
		},
	}
	t.Protocols.SetHTTP1(version == 1)
	t.Protocols.SetHTTP2(version == 2)
	b.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: 10 * time.Second}
}

func get(c *http.Client, url string) string {
	resp, err := c.Get(url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %s %s", resp.StatusCode, resp.Proto, body)
}

// TestTLS: the certificate of the server name, both versions of HTTP, clients' certificates, misdirected requests, and names
// that nobody has.
func TestTLS(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		ca, clients := newAuthority(t), newAuthority(t)
		b.table.ports[0].TLS = true
		b.table.handshakes = map[string]gateway.Handshake{
			"shop.example":   {Listener: &gateway.Listener{Name: "a"}, Certificates: []*tls.Certificate{ca.issue(t, "shop.example")}},
			"other.example":  {Listener: &gateway.Listener{Name: "b"}, Certificates: []*tls.Certificate{ca.issue(t, "other.example")}},
			"secure.example": {Listener: &gateway.Listener{Name: "c"}, Certificates: []*tls.Certificate{ca.issue(t, "secure.example")}, ClientCAs: clients.pool},
		}
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
		c := b.over(version, &tls.Config{RootCAs: ca.pool})
		proto := fmt.Sprintf("200 HTTP/%d.%d ", version, version%2)
		for _, name := range []string{"shop.example", "other.example"} {
			for range 2 {
				got := get(c, "https://"+name+"/x")
				if !strings.HasPrefix(got, proto) || !strings.Contains(got, "X-Forwarded-Proto: https") {
					t.Fatalf("%s: %s", name, got)
				}
			}
		}
		for _, name := range []string{"secure.example", "nobody.example"} {
			if got := get(c, "https://"+name+"/x"); strings.HasPrefix(got, "200") || !strings.Contains(got, "Get ") {
				t.Errorf("%s: %s", name, got)
			}
		}
		c = b.over(version, &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{*clients.issue(t, "me")}})
		if got := get(c, "https://secure.example/x"); !strings.HasPrefix(got, proto) {
			t.Error(got)
		}
		c = b.over(version, &tls.Config{RootCAs: ca.pool, ServerName: "shop.example"})
		if got := get(c, "https://other.example/x"); !strings.HasPrefix(got, "421 ") {
			t.Error(got)
		}
	})
}

// echoTCP starts a server that sends back what it gets, and returns its address.
func echoTCP(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

// TestPassthrough: a connection whose name is passed through reaches the endpoint as it is, next to names that end here. A
// TLSRoute of mode Terminate gets the decrypted bytes.
func TestPassthrough(t *testing.T) {
	b := start(t, Config{})
	ca := newAuthority(t)
	end := serveTLS(t, ca.issue(t, "end.example"), nil, echo)
	echoing := echoTCP(t)
	b.table.ports[0].TLS = true
	b.table.handshakes = map[string]gateway.Handshake{
		"end.example":  {Passthrough: []gateway.Backend{b.backend("end", end)}},
		"shop.example": {Certificates: []*tls.Certificate{ca.issue(t, "shop.example")}},
		"tcp.example":  {Certificates: []*tls.Certificate{ca.issue(t, "tcp.example")}, Forward: []gateway.Backend{b.backend("tcp", echoing)}},
	}
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
	c := b.over(2, &tls.Config{RootCAs: ca.pool})
	for _, name := range []string{"end.example", "shop.example"} {
		got := get(c, "https://"+name+"/x")
		if !strings.HasPrefix(got, "200 HTTP/2.0 ") || strings.Contains(got, "X-Forwarded") == (name == "end.example") {
			t.Errorf("%s: %s", name, got)
		}
	}
	k, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", b.port), &tls.Config{RootCAs: ca.pool, ServerName: "tcp.example"})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	_, _ = io.WriteString(k, "hello")
	_ = k.CloseWrite()
	if got, err := io.ReadAll(k); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestBackendTLS: endpoints are believed if their certificate is of the policy's CA and has one of its names.
func TestBackendTLS(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		ca, clients := newAuthority(t), newAuthority(t)
		at := serveTLS(t, ca.issue(t, "cart.internal", "spiffe://shop/cart"), nil, echo)
		mutual := serveTLS(t, ca.issue(t, "cart.internal"), clients.pool, echo)
		for i, test := range []struct {
			tls  gateway.BackendTLS
			at   string
			want string
		}{
			{gateway.BackendTLS{ServerName: "cart.internal", Roots: ca.pool}, at, "200"},
			{gateway.BackendTLS{ServerName: "cart.internal", Roots: ca.pool, ALPN: []string{"h2", "http/1.1"}}, at, "200"},
			{gateway.BackendTLS{ServerName: "other.internal", Roots: ca.pool}, at, "502"},
			{gateway.BackendTLS{ServerName: "cart.internal", Roots: clients.pool}, at, "502"},
			{gateway.BackendTLS{ServerName: "any.internal", Roots: ca.pool, SANs: []gateway.SAN{{Type: "Hostname", Value: "x"}, {Type: "URI", Value: "spiffe://shop/cart"}}}, at, "200"},
			{gateway.BackendTLS{ServerName: "cart.internal", Roots: ca.pool, SANs: []gateway.SAN{{Type: "Hostname", Value: "x"}}}, at, "502"},
			{gateway.BackendTLS{ServerName: "cart.internal", Roots: clients.pool, Insecure: true}, at, "200"},
			{gateway.BackendTLS{ServerName: "cart.internal", Roots: ca.pool}, mutual, "502"},
			{gateway.BackendTLS{ServerName: "cart.internal", Roots: ca.pool, Certificate: clients.issue(t, "gateway")}, mutual, "200"},
		} {
			back := b.backend(fmt.Sprint("cart", i), test.at)
			back.TLS = &test.tls
			b.rule(fmt.Sprintf("/%d/", i), &gateway.Rule{Backends: []gateway.Backend{back}})
			for range 2 {
				if got := b.ask(version, fmt.Sprintf("POST /%d/ HTTP/1.1\n\nhello", i)); !strings.HasPrefix(got, test.want) {
					t.Errorf("%d: want %s: %s", i, test.want, got)
				}
			}
		}
	})
}

// TestTCP: a port of TCP is relayed, and a dead endpoint passed over.
func TestTCP(t *testing.T) {
	b := start(t, Config{})
	echoing := echoTCP(t)
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	go func() {
		p := make([]byte, 100)
		for {
			n, from, err := u.ReadFrom(p)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(append([]byte("got "), p[:n]...), from)
		}
	}()
	b.table.ports[0].HTTP = false
	udp := freePort(t)
	b.table.ports = append(b.table.ports, gateway.Port{Number: udp, Proto: api.UDP})
	b.table.streams = map[uint16]gateway.Stream{
		b.port: {Backends: []gateway.Backend{b.backend("db", fmt.Sprintf("127.0.0.1:%d", freePort(t)), echoing)}},
		udp:    {Backends: []gateway.Backend{b.backend("dns", u.LocalAddr().String())}},
	}
	b.apply()
	for range 4 {
		c := b.dial()
		_, _ = io.WriteString(c, "hello")
		_ = c.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
		c.Close()
	}
	c, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", udp))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		_, _ = io.WriteString(c, "ping")
		p := make([]byte, 100)
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := c.Read(p); err != nil || string(p[:n]) != "got ping" {
			t.Fatalf("%q, %v", p[:n], err)
		}
	}
}
