package gatewaybench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/gateway/server"
	"github.com/fairway-net/fairway/internal/service"
)

// A world is a cluster with one Gateway. Route number i serves the host of hostOf(i).
type world struct {
	HTTP, HTTPS   uint16    // ports of the Gateway
	Ingress       [2]uint16 // ports of Ingresses
	Backend, GRPC netip.AddrPort
	Routes        int
	Certificates  int    // each has its own listener
	Cert, Key     []byte // PEM, of all listeners
}

func hostOf(i int) string { return fmt.Sprintf("host%d.example.com", i) }

// grpcHost is the host whose backend speaks gRPC.
const grpcHost = "grpc.example.com"

// endpoints returns the endpoints of the Services web and grpc.
func (w world) endpoints() server.Endpoints {
	at := func(a netip.AddrPort) []service.Endpoint { return []service.Endpoint{{Addr: a}} }
	return server.Endpoints{
		{Name: named("web")}:  at(w.Backend),
		{Name: named("grpc")}: at(w.GRPC),
	}
}

func named(name string) api.Name { return api.Name{Namespace: "shop", Name: name} }

// compiler returns a Compiler with all objects of the world.
func (w world) compiler() *gateway.Compiler {
	c := gateway.NewCompiler(gateway.Settings{IngressHTTP: w.Ingress[0], IngressHTTPS: w.Ingress[1]})
	c.Set(&gateway.Class{Meta: gateway.Meta{Name: api.Name{Name: "fairway"}}, Controller: "fairway.net/gateway"})
	for name, protocol := range map[string]string{"web": "", "grpc": "kubernetes.io/h2c"} {
		s := &gateway.Service{Ports: []gateway.ServicePort{{Proto: api.TCP, Port: 8080, AppProtocol: protocol}}}
		s.Name = named(name)
		c.Set(s)
	}
	c.Set(w.gateway(c))
	for i := range w.Routes {
		c.Set(route(hostOf(i), "/", "web", 1))
	}
	c.Set(route(grpcHost, "/", "grpc", 1))
	return c
}

// gateway returns the Gateway, and sets the Secrets of its certificates.
func (w world) gateway(c *gateway.Compiler) *gateway.Gateway {
	g := &gateway.Gateway{Class: "fairway", Bind: map[gateway.BindKey]uint16{
		{Proto: api.TCP, Port: 80}: w.HTTP, {Proto: api.TCP, Port: 443}: w.HTTPS,
	}}
	g.Name = named("gw")
	g.Listeners = []gateway.ListenerSpec{{Name: "http", Port: 80, Protocol: "HTTP"}}
	https := func(name, host string) {
		s := &gateway.Secret{Type: "kubernetes.io/tls", Data: map[string][]byte{"tls.crt": w.Cert, "tls.key": w.Key}}
		s.Name = named(name)
		c.Set(s)
		g.Listeners = append(g.Listeners, gateway.ListenerSpec{
			Name: name, Hostname: host, Port: 443, Protocol: "HTTPS",
			TLS: &gateway.ListenerTLS{Certificates: []gateway.ObjectRef{{GroupKind: gateway.GroupKind{Kind: "Secret"}, Name: name}}},
		})
	}
	https("grpc", grpcHost)
	for i := range w.Certificates {
		https(fmt.Sprint("cert", i), hostOf(i))
	}
	return g
}

// route returns a route for a prefix of a host's paths.
func route(host, prefix, backend string, weight uint32) *gateway.HTTPRoute {
	r := &gateway.HTTPRoute{}
	r.Name = named(host)
	r.Parents = []gateway.ObjectRef{{GroupKind: gateway.GroupKind{Group: "gateway.networking.k8s.io", Kind: "Gateway"}, Name: "gw"}}
	r.Hostnames = []string{host}
	r.Rules = []gateway.HTTPRule{{
		Matches:  []gateway.HTTPMatch{{Path: gateway.StringMatch{Type: "PathPrefix", Value: prefix}}},
		Backends: []gateway.BackendRef{{ObjectRef: gateway.ObjectRef{GroupKind: gateway.GroupKind{Kind: "Service"}, Name: backend, Port: 8080}, Weight: weight}},
	}}
	return r
}

// certificate makes a certificate of ECDSA P-256 for *.example.com.
func certificate() (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "example.com"}, DNSNames: []string{"*.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return nil, nil, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), nil
}
