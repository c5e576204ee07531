package rfc2136

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Timeout limits the transfer of a zone, and all updates of a zone.
const Timeout = time.Minute

// fudge is the difference of clocks that signatures tolerate, in seconds.
const fudge = 300

// Algorithms maps the names of TSIG algorithms to miekg/dns's.
var Algorithms = map[string]string{
	"hmac-sha1": dns.HmacSHA1, "hmac-sha224": dns.HmacSHA224, "hmac-sha256": dns.HmacSHA256, "hmac-sha384": dns.HmacSHA384, "hmac-sha512": dns.HmacSHA512,
}

// A Key signs messages. The zero value signs nothing.
type Key struct {
	Name, Algorithm string // the algorithm as in Algorithms
	Secret          string // in base64
}

// A session is a TCP connection to the server.
type session struct {
	conn *dns.Conn
	key  Key
	mac  string // of the last message, which the next signature covers
	buf  []byte
}

// dial connects to the server until ctx ends.
func dial(ctx context.Context, server string, key Key) (*session, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, fmt.Errorf("connect to the DNS server: %w [--rfc2136-host, --rfc2136-port]", err)
	}
	if end, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(end)
	}
	return &session{conn: &dns.Conn{Conn: c}, key: key, buf: make([]byte, dns.MaxMsgSize)}, nil
}

func (s *session) close() { _ = s.conn.Close() }

// send signs and sends a message.
func (s *session) send(m *dns.Msg) error {
	var raw []byte
	var err error
	if s.key.Name == "" {
		raw, err = m.Pack()
	} else {
		m.SetTsig(dns.CanonicalName(s.key.Name), Algorithms[s.key.Algorithm], fudge, time.Now().Unix())
		raw, s.mac, err = dns.TsigGenerate(m, s.key.Secret, "", false)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errEncode, err)
	}
	if _, err := s.conn.Write(raw); err != nil {
		return fmt.Errorf("send to the DNS server: %w", err)
	}
	return nil
}

// receive reads a message and verifies its signature. first says that it is the first answer to a message.
func (s *session) receive(id uint16, first bool) (*dns.Msg, error) {
	n, err := s.conn.Read(s.buf)
	if err != nil {
		return nil, fmt.Errorf("read from the DNS server: %w", err)
	}
	m := &dns.Msg{}
	if err := m.Unpack(s.buf[:n]); err != nil {
		return nil, fmt.Errorf("the DNS server sends a broken message: %w", err)
	}
	if m.Id != id || !m.Response {
		return nil, errors.New("the DNS server sends another answer than that to our message")
	}
	return m, s.verify(m, s.buf[:n], first)
}

func (s *session) verify(m *dns.Msg, raw []byte, first bool) error {
	if s.key.Name == "" {
		return nil
	}
	t := m.IsTsig()
	switch {
	case t == nil && m.Rcode != dns.RcodeSuccess:
		return nil // the caller reports the code
	case t == nil:
		return errors.New("the DNS server's answer is not signed")
	case t.Error != dns.RcodeSuccess:
		return fmt.Errorf("the DNS server refuses the key %s: %s [compare --rfc2136-tsig-keyname, --rfc2136-tsig-secret-alg, the secret, and the clocks]", s.key.Name, dns.RcodeToString[int(t.Error)])
	case m.Rcode == dns.RcodeNotAuth:
		return nil // miekg/dns verifies no answer with this code
	case !strings.EqualFold(t.Hdr.Name, dns.Fqdn(s.key.Name)):
		return fmt.Errorf("the DNS server signs with another key: %s", t.Hdr.Name)
	}
	if err := dns.TsigVerify(raw, s.key.Secret, s.mac, !first); err != nil {
		return fmt.Errorf("the signature of the DNS server's answer: %w [are the clocks right?]", err)
	}
	s.mac = t.MAC
	return nil
}

var errEncode = errors.New("encode a DNS message")

// A Refusal is an answer of the server with an error code.
type Refusal struct {
	Code   int
	Name   string // of an update; empty: it was a transfer
	What   string // what was asked
	Advice string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s: the DNS server answers %s [%s]", r.What, dns.RcodeToString[r.Code], r.Advice)
}
