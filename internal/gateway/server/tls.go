package server

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"

	"github.com/fairway-net/fairway/internal/gateway"
)

// A handshake is the table's decision about a TLS connection.
type handshake struct {
	gateway.Handshake
	name string
}

var (
	errPassthrough = errors.New("the connection goes on as it is")
	errNoListener  = errors.New("no listener has the server name")
)

// A recorder is a connection that keeps what was read, until the handshake decides whether TLS ends here.
type recorder struct {
	net.Conn
	socket  *socket // of Conn; nil if Conn is no TCP connection
	read    bytes.Buffer
	stopped bool // the connection's bytes are not recorded any more
	silent  bool // nothing may be written: the bytes are for an endpoint, or for nobody
}

// maxHello is the longest ClientHello.
const maxHello = 64 << 10

func (r *recorder) Read(b []byte) (int, error) {
	var n int
	var err error
	if r.socket != nil {
		n, err = r.socket.Read(b)
	} else {
		n, err = r.Conn.Read(b)
	}
	if !r.stopped {
		r.read.Write(b[:n])
		if r.read.Len() > maxHello {
			return n, errors.New("the ClientHello is too long")
		}
	}
	return n, err
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.silent {
		return len(b), nil
	}
	if r.socket != nil {
		return r.socket.Write(b)
	}
	return r.Conn.Write(b)
}

// replay returns a connection that begins with the recorded bytes.
func (r *recorder) replay() net.Conn {
	b := bufio.NewReaderSize(bytes.NewReader(r.read.Bytes()), r.read.Len())
	_, _ = b.Peek(r.read.Len()) // fills the buffer; a bytes.Reader does not fail
	return &prefixed{r.Conn, b}
}

// decide returns the configuration for a ClientHello.
func (s *Server) decide(st *state, port gateway.Port, hello *tls.ClientHelloInfo, rec *recorder, out *handshake) (*tls.Config, error) {
	out.name = strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	h, ok := st.table.Handshake(port.Number, out.name)
	if !ok {
		rec.silent = true // no alert: there is no server with the name
		return nil, errNoListener
	}
	out.Handshake = h
	if h.Passthrough != nil {
		rec.silent = true
		return nil, errPassthrough
	}
	rec.stopped = true
	rec.read = bytes.Buffer{}
	return s.tlsConfig(h, port.HTTP && h.Forward == nil), nil
}

// A tlsKey identifies a configuration. Connections with the same key may resume each other's sessions.
type tlsKey struct {
	listener    *gateway.Listener
	certificate *tls.Certificate
	cas         *x509.CertPool
	any, http   bool
}

// tlsConfig returns the configuration for a handshake. It is kept, because it holds the keys of session tickets.
func (s *Server) tlsConfig(h gateway.Handshake, http bool) *tls.Config {
	key := tlsKey{listener: h.Listener, cas: h.ClientCAs, any: h.ClientAny, http: http}
	if len(h.Certificates) > 0 {
		key.certificate = h.Certificates[0]
	}
	if c, ok := s.tlsConfigs.Load(key); ok {
		return c.(*tls.Config)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	for _, cert := range h.Certificates {
		c.Certificates = append(c.Certificates, *cert)
	}
	if http {
		c.NextProtos = []string{"h2", "http/1.1"}
	}
	switch {
	case h.ClientCAs != nil && h.ClientAny:
		c.ClientAuth, c.ClientCAs = tls.RequestClientCert, h.ClientCAs
	case h.ClientCAs != nil:
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, h.ClientCAs
	}
	if s.tlsCount.Add(1) > maxTLSConfigs {
		s.tlsConfigs.Clear()
		s.tlsCount.Store(0)
	}
	s.tlsConfigs.Store(key, c)
	return c
}

// maxTLSConfigs bounds the kept configurations. Above it all are forgotten, and clients make full handshakes again.
const maxTLSConfigs = 10_000

// A closeWriter can end one direction of a connection.
type closeWriter interface{ CloseWrite() error }
