package dns

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/core/dnsserver"
)

func TestBuiltInCorefileSuitsResolvConf(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "resolv.conf")
	service := netip.MustParseAddr("10.96.0.10")
	for _, c := range []struct {
		name, resolv string
		port         uint16
		forward      string // the forward line; empty means there must be none
		note         string
	}{
		{"usual", "nameserver 192.0.2.53\nsearch example.org\n", 53, "forward . " + path + " {", ""},
		{"no nameserver", "search example.org\n", 53, "", "names no server"},
		{"empty", "", 53, "", "names no server"},
		{"this machine", "nameserver 127.0.0.53\n", 53, "", "127.0.0.53 in " + path + " is this server itself"},
		{"this machine, IPv6", "nameserver ::1\n", 53, "", "is this server itself"},
		{"unspecified", "nameserver 0.0.0.0\n", 53, "", "is this server itself"},
		{"our own Service", "nameserver 10.96.0.10\n", 53, "", "is this server itself"},
		{"one of two", "nameserver 10.96.0.10\nnameserver 2001:db8::53\n", 53, "forward . 2001:db8::53 {", "forwarding only to the other servers"},
		{"local resolver, we on another port", "nameserver 127.0.0.53\n", 5353, "forward . " + path + " {", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			rewrite(t, path, "%s", c.resolv)
			s := New(Config{Port: c.port, ResolvConf: path, Self: []netip.Addr{service}})
			in, err := s.read()
			if err != nil {
				t.Fatal(err)
			}
			text, note := string(in.Contents), in.note
			if c.note == "" && note != "" || !strings.Contains(note, c.note) {
				t.Errorf("note %q, want %q", note, c.note)
			}
			want := c.forward != ""
			for _, word := range []string{"    forward ", "    loop\n", "fallthrough"} {
				if strings.Contains(text, word) != want {
					t.Errorf("has %q: %v, want %v:\n%s", word, !want, want, text)
				}
			}
			if !strings.Contains(text, c.forward) {
				t.Errorf("want %q:\n%s", c.forward, text)
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		in, err := New(Config{ResolvConf: filepath.Join(dir, "none")}).load()
		if err != nil || !strings.Contains(in.note, "no such file") {
			t.Errorf("note %q, error %v", in.note, err)
		}
	})
}

func TestBuiltInCorefileTakesFlags(t *testing.T) {
	text, err := New(Config{Port: 1053, ClusterDomain: "k8s.example.org", Kubeconfig: "/a b/config"}).Corefile()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".:1053 {", "kubernetes k8s.example.org in-addr.arpa", `kubeconfig "/a b/config"`, "disable denial k8s.example.org"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q:\n%s", want, text)
		}
	}
}

// TestPluginOrder: a query passes the plugins as in CoreDNS's own build, whatever we leave out.
func TestPluginOrder(t *testing.T) {
	if !alone(t) { // before any server of ours sets the order
		return
	}
	rest := dnsserver.Directives
	for _, p := range Plugins() {
		if p == "clients" || p == "names" { // they are ours
			continue
		}
		i := slices.Index(rest, p)
		if i < 0 {
			t.Fatalf("%s is not a plugin of CoreDNS, or comes too late", p)
		}
		rest = rest[i+1:]
	}
}
