package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

const validity = 365 * 24 * time.Hour

// An Authority is a certificate authority whose files are in one directory.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// A Subject is the identity in a certificate. Kubernetes reads a client's user and groups from Name and Groups. A
// server also has Names and Addrs.
type Subject struct {
	Name   string
	Groups []string
	Names  []string
	Addrs  []netip.Addr
}

// New makes a certificate authority in dir: ca.crt and ca.key.
func New(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create certificate directory: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	template, err := template(Subject{Name: "fairway-lab-ca"})
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse CA certificate: %w", err)
	}
	a := &Authority{dir: dir, cert: cert, key: key}
	return a, a.write("ca", der, key)
}

// Load reads the certificate authority that New made in dir.
func Load(dir string) (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("load CA: its key is a %T", pair.PrivateKey)
	}
	return &Authority{dir: dir, cert: pair.Leaf, key: key}, nil
}

// Dir returns the directory of the files.
func (a *Authority) Dir() string { return a.dir }

// Issue makes NAME.crt and NAME.key for the subject. The certificate is valid for a client and for a server.
func (a *Authority) Issue(name string, s Subject) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key %s: %w", name, err)
	}
	template, err := template(s)
	if err != nil {
		return err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign certificate %s: %w", name, err)
	}
	return a.write(name, der, key)
}

// IssueServiceAccount makes the key pair that signs service account tokens: service-account.key and
// service-account.pub.
func (a *Authority) IssueServiceAccount() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // an RSA key takes 100 times as long
	if err != nil {
		return fmt.Errorf("make service account key: %w", err)
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode service account key: %w", err)
	}
	if err := a.writePEM("service-account.pub", "PUBLIC KEY", pub, 0o644); err != nil {
		return err
	}
	return a.writeKey("service-account", key)
}

func template(s Subject) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: s.Name, Organization: s.Groups},
		DNSNames:     s.Names,
		NotBefore:    now.Add(-time.Hour), // allows for clocks that step back
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
	for _, addr := range s.Addrs {
		t.IPAddresses = append(t.IPAddresses, net.IP(addr.AsSlice()))
	}
	return t, nil
}

func (a *Authority) write(name string, der []byte, key crypto.Signer) error {
	if err := a.writePEM(name+".crt", "CERTIFICATE", der, 0o644); err != nil {
		return err
	}
	return a.writeKey(name, key)
}

func (a *Authority) writeKey(name string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key %s: %w", name, err)
	}
	return a.writePEM(name+".key", "PRIVATE KEY", der, 0o600)
}

func (a *Authority) writePEM(name, kind string, der []byte, mode os.FileMode) error {
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(filepath.Join(a.dir, name), data, mode); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
