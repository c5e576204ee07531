package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

// stapled returns the certificate of a listener whose Secret has an answer of the authority about the certificate.
func stapled(t *testing.T, ca *authority) (*tls.Certificate, []byte) {
	t.Helper()
	cert := ca.issue(t, "shop.example")
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	staple, err := ocsp.CreateResponse(ca.cert, ca.cert, ocsp.Response{
		Status: ocsp.Good, SerialNumber: leaf.SerialNumber, ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour),
	}, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	meta := func(name string) gateway.Meta { return gateway.Meta{Name: api.Name{Namespace: "shop", Name: name}} }
	c := gateway.NewCompiler(gateway.Settings{})
	c.Set(&gateway.Class{Meta: gateway.Meta{Name: api.Name{Name: "fairway"}}, Controller: "fairway.net/gateway"})
	c.Set(&gateway.Secret{Meta: meta("cert"), Type: "kubernetes.io/tls", Data: map[string][]byte{
		"tls.crt":         pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		"tls.key":         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"tls.ocsp-staple": staple,
	}})
	c.Set(&gateway.Gateway{Meta: meta("front"), Class: "fairway", Bind: map[gateway.BindKey]uint16{{Proto: api.TCP, Port: 443}: 20000},
		Listeners: []gateway.ListenerSpec{{Name: "https", Port: 443, Protocol: "HTTPS", TLS: &gateway.ListenerTLS{
			Certificates: []gateway.ObjectRef{{GroupKind: gateway.GroupKind{Kind: "Secret"}, Name: "cert"}}}}}})
	h, ok := c.Table().Handshake(20000, "shop.example")
	if !ok || len(h.Certificates) != 1 {
		t.Fatalf("the listener has no certificate: %v", c.ExplainObject(gateway.Ref{Kind: gateway.KindGateway, Name: meta("front").Name}))
	}
	return h.Certificates[0], staple
}

// TestOCSP: a client gets the OCSP answer of the Secret with the certificate, in both engines.
func TestOCSP(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		ca := newAuthority(t)
		cert, staple := stapled(t, ca)
		b.table.ports[0].TLS = true
		b.table.handshakes = map[string]gateway.Handshake{"shop.example": {Listener: &gateway.Listener{Name: "a"}, Certificates: []*tls.Certificate{cert}}}
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
		got := make(chan []byte, 10)
		c := b.over(version, &tls.Config{RootCAs: ca.pool, VerifyConnection: func(s tls.ConnectionState) error {
			got <- s.OCSPResponse
			_, err := ocsp.ParseResponseForCert(s.OCSPResponse, s.PeerCertificates[0], ca.cert)
			return err
		}})
		if text := get(c, "https://shop.example/x"); !strings.HasPrefix(text, "200") {
			t.Fatal(text)
		}
		if !bytes.Equal(<-got, staple) {
			t.Error("the client gets another answer")
		}
	})
}
