package server

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/fairway-net/fairway/internal/gateway"
)

// proxyHeader is a header of the PROXY protocol for a client at 192.0.2.7.
func proxyHeader(t *testing.T, version byte, command proxyproto.ProtocolVersionAndCommand) string {
	h := proxyproto.Header{
		Version: version, Command: command, TransportProtocol: proxyproto.TCPv4,
		SourceAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4711}, DestinationAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80},
	}
	b, err := h.Format()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestProxyProtocol: a trusted peer's header names the client, in both versions of the protocol and of HTTP, whether or not the
// first request comes in the same packet.
func TestProxyProtocol(t *testing.T) {
	b := start(t, Config{ProxyProtocol: true, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, HeadTimeout: 300 * time.Millisecond})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
	for name, header := range map[string]string{
		"version 1": proxyHeader(t, 1, proxyproto.PROXY), "version 2": proxyHeader(t, 2, proxyproto.PROXY),
		"local": proxyHeader(t, 2, proxyproto.LOCAL),
	} {
		want := "X-Real-Ip: 192.0.2.7"
		if name == "local" {
			want = "X-Real-Ip: 127.0.0.1" // the proxy's own check
		}
		for _, pause := range []time.Duration{0, 20 * time.Millisecond} {
			c := b.dial()
			r := bufio.NewReader(c)
			for i := range 3 {
				request := "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
				if i == 0 && pause == 0 {
					request = header + request
				} else if i == 0 {
					_, _ = io.WriteString(c, header)
					<-time.After(pause)
				}
				if got := oneAnswer(t, c, r, request); !strings.Contains(got, want) {
					t.Fatalf("%s, request %d: no %q in\n%s", name, i, want, got)
				}
			}
		}
	}
	if got := b.raw("GET / HTTP/1.1\r\nHost: a\r\n\r\n"); got != "" {
		t.Errorf("a trusted peer without the header gets %q", got)
	}
	if got := b.raw("PROXY TCP4 192.0.2.7\r\n"); got != "" {
		t.Errorf("a header that is cut off gets %q", got)
	}
	await(t, b.srv, 2, "fairway_gateway_refused_connections_total", "proxy-protocol")
}

// oneAnswer sends a request and reads its answer.
func oneAnswer(t *testing.T, c net.Conn, r *bufio.Reader, request string) string {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestProxyProtocolOfStrangers: the header of a peer that is not trusted is no request.
func TestProxyProtocolOfStrangers(t *testing.T) {
	b := start(t, Config{ProxyProtocol: true, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
	if got := b.raw(proxyHeader(t, 1, proxyproto.PROXY) + "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 4") && !strings.HasPrefix(got, "HTTP/1.1 505") {
		t.Error(got)
	}
	if got := b.raw("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); !strings.Contains(got, "X-Real-Ip: 127.0.0.1") {
		t.Error(got)
	}
}

// TestProxyProtocolIdle: a connection that begins with the header has no buffer either while it is idle.
func TestProxyProtocolIdle(t *testing.T) {
	b := start(t, Config{ProxyProtocol: true, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
	c := b.dial()
	oneAnswer(t, c, bufio.NewReader(c), proxyHeader(t, 2, proxyproto.PROXY)+"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		b.srv.conns.mu.Lock()
		plain := false
		for k := range b.srv.conns.open {
			if k.idle.Load() {
				_, plain = k.Conn.(*net.TCPConn)
			}
		}
		b.srv.conns.mu.Unlock()
		if plain {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the idle connection still has the buffer of the header's reader")
		}
	}
}
