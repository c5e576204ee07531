package server

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

// TestUnknownName: a handshake with a name that no listener has ends without a byte. Clients of a TLSRoute then see the end of
// the connection, as from a server that is not there, and not an alert that the server did not send.
func TestUnknownName(t *testing.T) {
	b := start(t, Config{})
	b.table.handshakes = map[string]gateway.Handshake{"shop.example": {Listener: b.table.listener}}
	b.table.ports = []gateway.Port{{Number: b.port, Proto: api.TCP, TLS: true}}
	b.apply()
	_, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(b.port))), &tls.Config{ServerName: "other.example"})
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the handshake ends with %v", err)
	}
}
