package dns

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"text/template"

	"github.com/miekg/dns"

	"github.com/fairway-net/fairway/internal/kernel/netns"
)

// builtin is kubeadm's Corefile with three differences:
//   - The cache leaves out names of the cluster. The kubernetes plugin answers from memory anyway, and a cached "no such
//     name" would hide a new Service for its TTL.
//   - The acl admits the cluster's own addresses only. A resolver that a Service or a route opens to the world serves
//     attacks on others.
//   - Without an upstream there is no fallthrough, which would turn "no such name" of a reverse lookup into a server
//     failure, and no loop to look for.
const builtin = `{{with .Note}}# {{.}}
{{end}}.:{{.Port}} {
    errors
    health {
        lameduck 5s
    }
    ready
    acl {
        allow net {{.Clients}}
        block
    }
    kubernetes {{.Domain}} in-addr.arpa ip6.arpa {
{{- with .Kubeconfig}}
        kubeconfig "{{.}}"
{{- end}}
{{- with .Master}}
        endpoint "{{.}}"
{{- end}}
        pods insecure
{{- if .Upstreams}}
        fallthrough in-addr.arpa ip6.arpa
{{- end}}
        ttl 30
    }
    prometheus :9153
{{- with .Upstreams}}
    clients 1000
    forward . {{.}} {
        max_concurrent 1000
    }
    loop
{{- end}}
    cache 30 {
        disable success {{.Domain}}
        disable denial {{.Domain}}
    }
    reload
    loadbalance
}
{{- range .Stubs}}
{{.Domain}}:{{$.Port}} {
    errors
    acl {
        allow net {{$.Clients}}
        block
    }
    prometheus :9153
    forward . {{.Servers}} {
        max_concurrent 1000
    }
    cache 30
}
{{- end}}
`

// values fill the built-in Corefile.
type values struct {
	Note               string // a remark above the Corefile; empty means none
	Port               uint16
	Domain             string
	Kubeconfig, Master string // where the API server is; both empty means in the cluster
	Upstreams          string // arguments of forward; empty means no forward
	Clients            string // arguments of acl: the clients that get answers
	Stubs              []stub // domains that other servers answer for
}

// builtin renders the built-in Corefile for this machine as it is now.
func (s *Server) builtin() (text []byte, note string, err error) {
	self, err := s.self()
	if err != nil {
		return nil, "", err
	}
	v := values{Port: s.cfg.Port, Domain: s.cfg.ClusterDomain, Kubeconfig: s.cfg.Kubeconfig, Master: s.cfg.Master}
	v.Upstreams, v.Note = upstreams(s.cfg.ResolvConf, self)
	stubs, servers, err := readKubeDNS(s.kubeDNS, s.cfg.ClusterDomain)
	if err != nil {
		return nil, "", err
	}
	if v.Stubs = stubs; servers != "" {
		v.Upstreams, v.Note = servers, ""
	}
	v.Clients = clients(s.cfg.AllowFrom)
	for _, arg := range []string{v.Domain, v.Kubeconfig, v.Master} {
		if strings.ContainsAny(arg, "\"{}\n\\") {
			return nil, "", fmt.Errorf("%q cannot be written into a Corefile", arg)
		}
	}
	var b bytes.Buffer
	t, err := template.New("Corefile").Parse(builtin)
	if err != nil {
		return nil, "", err
	}
	if err := t.Execute(&b, v); err != nil {
		return nil, "", err
	}
	return b.Bytes(), v.Note, nil
}

// private are the addresses that no packet from the Internet has. Pods and nodes have such addresses in nearly every
// cluster, which then needs no setting.
var private = []string{
	"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", // RFC 1918
	"100.64.0.0/10",          // RFC 6598, shared
	"127.0.0.0/8", "::1/128", // loopback
	"169.254.0.0/16", "fe80::/10", // link-local
	"fc00::/7", // RFC 4193, unique local
}

// clients returns the arguments of acl.
func clients(allow []netip.Prefix) string {
	all := slices.Clone(private)
	for _, p := range allow {
		all = append(all, p.String())
	}
	return strings.Join(all, " ")
}

// self returns the addresses that lead back to this server. An upstream with one of them would make an endless loop of
// queries.
func (s *Server) self() ([]netip.Addr, error) {
	self := slices.Clone(s.cfg.Self)
	if s.cfg.Port != 53 {
		// resolv.conf always means port 53. A local resolver at that port (systemd-resolved, dnsmasq) is a good upstream.
		return self, nil
	}
	own, err := netns.Addrs()
	if err != nil {
		return nil, err
	}
	for _, p := range own {
		self = append(self, p.Addr())
	}
	return self, nil
}

// upstreams returns the arguments of forward for a resolv.conf: the file itself if all of its servers are usable, else
// the usable servers, else nothing. note says why it is not the file itself.
func upstreams(path string, self []netip.Addr) (args, note string) {
	rc, err := dns.ClientConfigFromFile(path)
	switch {
	case err != nil:
		return "", fmt.Sprintf("names outside the cluster are not answered: read resolv.conf: %v", err)
	case len(rc.Servers) == 0:
		return "", fmt.Sprintf("names outside the cluster are not answered: %s names no server", path)
	}
	var usable, skipped []string
	for _, server := range rc.Servers {
		addr, err := netip.ParseAddr(server)
		if err != nil || isSelf(addr.WithZone(""), self) {
			skipped = append(skipped, server)
			continue
		}
		usable = append(usable, server)
	}
	if len(skipped) == 0 {
		return path, ""
	}
	why := fmt.Sprintf("%s in %s is this server itself or no address", strings.Join(skipped, " "), path)
	if len(usable) == 0 {
		return "", "names outside the cluster are not answered: " + why
	}
	return strings.Join(usable, " "), "forwarding only to the other servers: " + why
}

// isSelf reports whether a query to port 53 of addr reaches a server of this machine that listens on every address.
func isSelf(addr netip.Addr, self []netip.Addr) bool {
	addr = addr.Unmap()
	if addr.IsUnspecified() {
		return true // Linux sends a packet for 0.0.0.0 to itself
	}
	for _, s := range self {
		// If 127.0.0.1 is local, all of 127.0.0.0/8 is.
		if s == addr || s.IsLoopback() && addr.IsLoopback() {
			return true
		}
	}
	return false
}
