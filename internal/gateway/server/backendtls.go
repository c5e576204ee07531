package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/gateway"
)

// backendTLS returns the configuration of TLS to endpoints.
func backendTLS(b *gateway.BackendTLS) *tls.Config {
	c := &tls.Config{
		ServerName: b.ServerName, RootCAs: b.Roots, NextProtos: slices.Clone(b.ALPN), MinVersion: tls.VersionTLS12,
		// The sessions of an upstream are its own.
		ClientSessionCache: tls.NewLRUClientSessionCache(64),
	}
	if b.Certificate != nil {
		c.Certificates = []tls.Certificate{*b.Certificate}
	}
	if b.Insecure || len(b.SANs) > 0 || b.ServerName == "" {
		// crypto/tls verifies the name ServerName only, so the check is done here.
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(s tls.ConnectionState) error { return verifyBackend(b, s) }
	}
	if c.ServerName == "" {
		c.ServerName = "backend.invalid" // crypto/tls asks for a name, and sends none that is not valid
	}
	return c
}

// verifyBackend checks an endpoint's certificate: its chain, and that it has one of the SANs.
func verifyBackend(b *gateway.BackendTLS, s tls.ConnectionState) error {
	if b.Insecure {
		return nil
	}
	if len(s.PeerCertificates) == 0 {
		return errors.New("the backend has no certificate")
	}
	leaf := s.PeerCertificates[0]
	opts := x509.VerifyOptions{Roots: b.Roots, Intermediates: x509.NewCertPool()}
	for _, c := range s.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(opts); err != nil {
		return err
	}
	if len(b.SANs) == 0 {
		return leaf.VerifyHostname(b.ServerName)
	}
	for _, san := range b.SANs {
		if san.Type == "URI" {
			for _, u := range leaf.URIs {
				if u.String() == san.Value {
					return nil
				}
			}
		} else if leaf.VerifyHostname(san.Value) == nil || slices.ContainsFunc(leaf.DNSNames, func(n string) bool { return strings.EqualFold(n, san.Value) }) {
			return nil
		}
	}
	return fmt.Errorf("the backend's certificate has none of the %d names of its policy [see subjectAltNames of the BackendTLSPolicy]", len(b.SANs))
}

// newTransport returns the transport of requests that the pools of HTTP/1.1 connections do not carry: all requests of
// HTTP/2 clients, and requests to HTTP/2 backends.
func (u *upstream) newTransport() *http.Transport {
	s := u.srv
	t := &http.Transport{
		DialContext:            (&net.Dialer{}).DialContext,
		TLSClientConfig:        u.tls,
		TLSHandshakeTimeout:    s.ConnectTimeout,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    s.MaxIdlePerEndpoint,
		IdleConnTimeout:        idleUpstream,
		MaxResponseHeaderBytes: maxAnswerHead,
		Protocols:              &http.Protocols{},
	}
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, s.ConnectTimeout)
		defer cancel()
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, &dialError{err}
		}
		return c, nil
	}
	switch {
	case u.key.protocol == gateway.H2C && u.tls == nil:
		t.Protocols.SetUnencryptedHTTP2(true)
	case u.key.protocol == gateway.H2C:
		t.Protocols.SetHTTP2(true)
	default:
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(u.tls != nil && slices.Contains(u.tls.NextProtos, "h2"))
	}
	return t
}

// A dialError says that nothing of a request was sent.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }
