package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/fairway-net/fairway/internal/api"
)

// secretCache has the parsed contents of Secrets and ConfigMaps. To parse a certificate takes as long as to compile a
// hundred routes, so it is done once for each version of an object.
type secretCache struct {
	certificates map[Ref]parsed[*tls.Certificate]
	pools        map[Ref]parsed[*x509.CertPool]
}

type parsed[T any] struct {
	value T
	err   error
}

func newSecretCache() secretCache {
	return secretCache{map[Ref]parsed[*tls.Certificate]{}, map[Ref]parsed[*x509.CertPool]{}}
}

func (s secretCache) forget(ref Ref) {
	delete(s.certificates, ref)
	delete(s.pools, ref)
}

var errNoObject = errors.New("does not exist, or is not read yet")

// certificate returns the certificate of a Secret of type kubernetes.io/tls.
func (c *Compiler) certificate(reader Ref, name api.Name) (*tls.Certificate, error) {
	secret, _ := c.read(reader, KindSecret, name).(*Secret)
	if secret == nil {
		return nil, fmt.Errorf("Secret %s %w", name, errNoObject)
	}
	p, ok := c.secrets.certificates[secret.Ref()]
	if !ok {
		p.value, p.err = parseCertificate(secret)
		c.secrets.certificates[secret.Ref()] = p
	}
	return p.value, p.err
}

func parseCertificate(secret *Secret) (*tls.Certificate, error) {
	cert, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		return nil, fmt.Errorf("Secret %s has no certificate with its key in tls.crt and tls.key: %w", secret.Name, err)
	}
	if staple := secret.Data["tls.ocsp-staple"]; len(staple) > 0 {
		cert.OCSPStaple = staple
	}
	return &cert, nil
}

// authorities returns the CAs of an object's ca.crt. The object is a ConfigMap or a Secret.
func (c *Compiler) authorities(reader Ref, kind Kind, name api.Name) (*x509.CertPool, error) {
	o := c.read(reader, kind, name)
	if o == nil {
		return nil, fmt.Errorf("%s %s %w", kind, name, errNoObject)
	}
	p, ok := c.secrets.pools[o.Ref()]
	if !ok {
		p.value, p.err = parseAuthorities(o)
		c.secrets.pools[o.Ref()] = p
	}
	return p.value, p.err
}

func authorityText(o Object) []byte {
	switch o := o.(type) {
	case *ConfigMap:
		return []byte(o.Data["ca.crt"])
	case *Secret:
		return o.Data["ca.crt"]
	}
	return nil
}

func parseAuthorities(o Object) (*x509.CertPool, error) {
	text := authorityText(o)
	pool, n := x509.NewCertPool(), 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s %s has a certificate in ca.crt that cannot be read: %w", o.Ref().Kind, o.Ref().Name, err)
		}
		pool.AddCert(cert)
		n++
	}
	if n == 0 {
		return nil, fmt.Errorf("%s %s has no certificate in ca.crt", o.Ref().Kind, o.Ref().Name)
	}
	return pool, nil
}

// join returns the CAs of several objects, which authorities has parsed; nil without any.
func (s secretCache) join(objects []Object) *x509.CertPool {
	if len(objects) == 1 {
		return s.pools[objects[0].Ref()].value
	}
	var pool *x509.CertPool
	for _, o := range objects {
		if pool == nil {
			pool = x509.NewCertPool()
		}
		for block, rest := pem.Decode(authorityText(o)); block != nil; block, rest = pem.Decode(rest) {
			if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
				pool.AddCert(cert)
			}
		}
	}
	return pool
}
