package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func TestIssue(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	ca, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	subject := Subject{Name: "system:node:node-1", Groups: []string{"system:nodes"},
		Names: []string{"node-1"}, Addrs: []netip.Addr{netip.MustParseAddr("192.168.49.2"), netip.MustParseAddr("fd00:49::2")}}
	if err := ca.Issue("node-1", subject); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "node-1.crt"), filepath.Join(dir, "node-1.key"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(root) {
		t.Fatal("ca.crt holds no certificate")
	}
	for _, name := range []string{"node-1", "192.168.49.2", "fd00:49::2"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("as server %s: %v", name, err)
		}
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		t.Errorf("as client: %v", err)
	}
	if got := pair.Leaf.Subject; got.CommonName != subject.Name || len(got.Organization) != 1 || got.Organization[0] != "system:nodes" {
		t.Errorf("subject is %v", got)
	}
}

func TestKeysAreSecret(t *testing.T) {
	dir := t.TempDir()
	ca, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.IssueServiceAccount(); err != nil {
		t.Fatal(err)
	}
	keys, err := filepath.Glob(filepath.Join(dir, "*.key"))
	if err != nil || len(keys) != 2 {
		t.Fatalf("keys are %v, %v; want those of the CA and of service accounts", keys, err)
	}
	for _, key := range keys {
		info, err := os.Stat(key)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", key, info.Mode(), err)
		}
	}
}

func TestKubeconfig(t *testing.T) {
	dir := t.TempDir()
	ca, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Issue("admin", Subject{Name: "admin"}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubeconfig")
	if err := ca.Kubeconfig(path, "admin", "https://127.0.0.1:16443"); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://127.0.0.1:16443" || len(config.CertData) == 0 || len(config.CAData) == 0 {
		t.Errorf("configuration is %v", config)
	}
	if err := ca.Kubeconfig(path, "nobody", "https://127.0.0.1:16443"); err == nil {
		t.Error("a kubeconfig of a certificate that was never issued")
	}
}
