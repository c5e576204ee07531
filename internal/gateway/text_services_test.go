package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

// service reads ports "name:80:appProtocol", "80" or "name:53/UDP".
func service(m gateway.Meta, w words) *gateway.Service {
	s := &gateway.Service{Meta: m, External: w.get("external"), Headless: w.has("headless")}
	for _, word := range w.all[2:] {
		if strings.Contains(word, "=") || word == "headless" {
			continue
		}
		p := gateway.ServicePort{Proto: api.TCP}
		if rest, ok := strings.CutSuffix(word, "/UDP"); ok {
			word, p.Proto = rest, api.UDP
		}
		parts := strings.Split(word, ":")
		switch len(parts) {
		case 1:
			p.Port = uint16(number(parts[0]))
		case 3:
			p.AppProtocol = parts[2]
			fallthrough
		default:
			p.Name, p.Port = parts[0], uint16(number(parts[1]))
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

func grant(m gateway.Meta, w words) *gateway.Grant {
	g := &gateway.Grant{Meta: m}
	for _, f := range w.list("from") {
		kind, ns, _ := strings.Cut(f, ":")
		g.From = append(g.From, gateway.GrantFrom{GroupKind: gateway.GroupKind{Group: gateway.Group, Kind: kind}, Namespace: ns})
	}
	for _, t := range w.list("to") {
		kind, n, _ := strings.Cut(t, ":")
		g.To = append(g.To, gateway.GrantTo{GroupKind: gateway.GroupKind{Kind: kind}, Name: n})
	}
	return g
}

func tlsPolicy(m gateway.Meta, w words) *gateway.BackendTLSPolicy {
	p := &gateway.BackendTLSPolicy{Meta: m, Hostname: w.get("hostname"), WellKnown: w.get("wellknown")}
	for _, t := range w.list("targets") {
		n, section, _ := strings.Cut(t, ":")
		p.Targets = append(p.Targets, gateway.ObjectRef{GroupKind: gateway.GroupKind{Kind: "Service"}, Name: n, Section: section})
	}
	for _, ca := range w.list("ca") {
		kind, n, ok := strings.Cut(ca, ":")
		if !ok {
			kind, n = "ConfigMap", ca
		}
		p.CAs = append(p.CAs, gateway.ObjectRef{GroupKind: gateway.GroupKind{Kind: kind}, Name: n})
	}
	for _, san := range w.list("san") {
		p.SANs = append(p.SANs, gateway.SAN{Type: "Hostname", Value: san})
	}
	return p
}

// keyPair is one certificate with its key, which is also its own CA.
var keyPair = sync.OnceValues(func() (cert, key []byte) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"*.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		panic(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
})

func secret(m gateway.Meta, w words) *gateway.Secret {
	s := &gateway.Secret{Meta: m, Type: "kubernetes.io/tls", Data: map[string][]byte{}}
	switch {
	case w.has("broken"):
		s.Data["tls.crt"], s.Data["tls.key"] = []byte("not"), []byte("these")
	case !w.has("opaque"):
		s.Data["tls.crt"], s.Data["tls.key"] = keyPair()
		s.Data["ca.crt"] = s.Data["tls.crt"]
	}
	return s
}

func configMap(m gateway.Meta, w words) *gateway.ConfigMap {
	cert, _ := keyPair()
	c := &gateway.ConfigMap{Meta: m, Data: map[string]string{"ca.crt": string(cert)}}
	if w.has("broken") {
		c.Data["ca.crt"] = "not a certificate"
	}
	if w.has("plain") {
		delete(c.Data, "ca.crt")
	}
	return c
}

// routePolicy reads the spec as JSON after the targets "HTTPRoute:name:rule,…".
func routePolicy(m gateway.Meta, w words) *gateway.RoutePolicy {
	p := &gateway.RoutePolicy{}
	if i := strings.IndexByte(w.line, '{'); i >= 0 {
		if err := json.Unmarshal([]byte(w.line[i:]), p); err != nil {
			w.t.Fatalf("%s: %v", w.at, err)
		}
	}
	p.Meta = m
	for _, t := range w.list("targets") {
		parts := strings.Split(t+":", ":")
		p.Targets = append(p.Targets, gateway.ObjectRef{GroupKind: gateway.GroupKind{Group: gateway.Group, Kind: parts[0]}, Name: parts[1], Section: parts[2]})
	}
	return p
}
