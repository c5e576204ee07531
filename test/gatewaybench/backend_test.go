package gatewaybench

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

// The paths of the backend, by the size of their answers.
const (
	small = "/200B"
	large = "/20kB"
)

func answerOf(size int) []byte {
	return append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nServer: backend\r\nDate: %s\r\nContent-Length: %d\r\n\r\n",
		time.Now().UTC().Format(http.TimeFormat), size), bytes.Repeat([]byte("x"), size)...)
}

// listen listens on loopback.
func listen(t testing.TB) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func addrOf(l net.Listener) netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }

// backend answers HTTP/1.1 requests without a body. It does no more than find their ends, so that it costs little.
func backend(t testing.TB) netip.AddrPort {
	l := listen(t)
	shortAnswer, longAnswer := answerOf(200), answerOf(20_000)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 8<<10)
				for n := 0; ; {
					end := bytes.Index(b[:n], []byte("\r\n\r\n"))
					if end < 0 {
						more, err := c.Read(b[n:])
						if err != nil {
							return
						}
						n += more
						continue
					}
					answer := shortAnswer
					if bytes.Contains(b[:end], []byte(large+" ")) {
						answer = longAnswer
					}
					if _, err := c.Write(answer); err != nil {
						return
					}
					n = copy(b, b[end+4:n])
				}
			}()
		}
	}()
	return addrOf(l)
}

// grpcBackend answers each gRPC call with one message of 200 bytes.
func grpcBackend(t testing.TB) netip.AddrPort {
	l := listen(t)
	message := append([]byte{0, 0, 0, 0, 200}, bytes.Repeat([]byte("x"), 200)...)
	s := &http.Server{Protocols: &http.Protocols{}, ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write(message)
		w.Header().Set("Grpc-Status", "0")
	})}
	s.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return addrOf(l)
}
