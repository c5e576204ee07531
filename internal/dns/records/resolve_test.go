package records

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestWhy: each reason is the answer to a name that shows it.
func TestWhy(t *testing.T) {
	at := netip.MustParseAddr
	http := []Port{{"http", "TCP", 80}}
	c := Cluster{
		Namespaces: []string{"prod"},
		Services: []Service{
			{Namespace: "prod", Name: "web", ClusterIPs: []netip.Addr{at("10.96.0.7")}, Ports: http, Endpoints: []Endpoint{{Address: at("10.0.0.1"), Ready: true, Ports: http}}},
			{Namespace: "prod", Name: "db", Endpoints: []Endpoint{
				{Address: at("10.0.0.2"), Hostname: "db-0", Ready: true, Ports: http}, {Address: at("10.0.0.3"), Hostname: "db-1", Ports: http},
				{Address: at("fd00::"), Ready: true},
			}},
			{Namespace: "prod", Name: "idle"},
			{Namespace: "prod", Name: "near", ExternalName: "web.prod.svc.cluster.local"},
			{Namespace: "prod", Name: "far", ExternalName: "mx.example.org"},
			{Namespace: "prod", Name: "loop", ExternalName: "loop.prod.svc.cluster.local"},
			{Namespace: "prod", Name: "number", ExternalName: "192.0.2.1"},
		},
	}
	for _, q := range []struct{ name, qtype, want string }{
		{"web.prod.svc", "A", "[{A 10.96.0.7}] " + Found.String()},
		{"WEB.prod.svc", "AAAA", "[] " + OtherFamily.String()},
		{"web.prod.svc", "MX", "[] " + OtherType.String()},
		{"_http._tcp.web.prod.svc", "SRV", "[{SRV 0 100 80 web.prod.svc.cluster.local.}] " + Found.String()},
		{"_https._tcp.web.prod.svc", "SRV", "[] " + NoPort.String()},
		{"db.prod.svc", "A", "[{A 10.0.0.2}] " + Found.String()},
		{"db.prod.svc", "SRV", "[{SRV 0 50 80 db-0.db.prod.svc.cluster.local.}] " + Found.String()},
		{"fd00--0.db.prod.svc", "AAAA", "[{AAAA fd00::}] " + Found.String()},
		{"db-1.db.prod.svc", "A", "[] " + NoReadyEndpoint.String()},
		{"db-2.db.prod.svc", "A", "[] " + NoEndpoint.String()},
		{"10-0-0-1.web.prod.svc", "A", "[{A 10.0.0.1}] " + Found.String()},
		{"idle.prod.svc", "A", "[] " + NoReadyEndpoint.String()},
		{"near.prod.svc", "A", "[{A 10.96.0.7} {CNAME web.prod.svc.cluster.local.}] " + Found.String()},
		{"near.prod.svc", "SRV", "[] " + OtherType.String()},
		{"far.prod.svc", "A", "[{CNAME mx.example.org.}] " + AliasOutside.String()},
		{"loop.prod.svc", "A", "[] " + AliasBroken.String()},
		{"number.prod.svc", "A", "[] " + BadAlias.String()},
		{"10-0-0-9.prod.pod", "A", "[{A 10.0.0.9}] " + Found.String()},
		{"nine.prod.pod", "A", "[] " + NoPodName.String()},
		{"none.prod.svc", "A", "[] " + NoService.String()},
		{"web.test.svc", "A", "[] " + NoNamespace.String()},
		{"prod.svc", "A", "[] " + OnlyNamespace.String()},
		{"web.prod", "A", "[] " + BadName.String()},
	} {
		answer, why := Resolve(c, Question{q.name + ".cluster.local.", q.qtype})
		if got := fmt.Sprint(answer, " ", why); got != q.want {
			t.Errorf("%s %s: %s, want %s", q.name, q.qtype, got, q.want)
		}
	}
	for name, want := range map[string]string{
		"7.0.96.10.in-addr.arpa.": "[{PTR web.prod.svc.cluster.local.}] " + Found.String(),
		"3.0.0.10.in-addr.arpa":   "[] " + NoAddress.String(),
		"0.0.10.in-addr.arpa":     "[] " + BadName.String(),
		"0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa": "[{PTR fd00--0.db.prod.svc.cluster.local.}] " + Found.String(),
		"example.org": "[] " + OtherZone.String(),
	} {
		answer, why := Resolve(c, Question{name, "PTR"})
		if got := fmt.Sprint(answer, " ", why); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	c.Pods = []Pod{{"prod", at("10.0.0.1")}}
	for name, want := range map[string]Why{"10-0-0-1.prod.pod.cluster.local": Found, "10-0-0-2.prod.pod.cluster.local": NoPodName} {
		if _, why := Resolve(c, Question{name, "A"}); why != want {
			t.Errorf("verified, %s: %v, want %v", name, why, want)
		}
	}
}

// FuzzResolve: no name makes Resolve fail, and only a name that exists has records.
func FuzzResolve(f *testing.F) {
	f.Add("_http._tcp.web.prod.svc.cluster.local.", "SRV")
	f.Add("1.0.0.10.in-addr.arpa.", "PTR")
	f.Add(".", "A")
	c := Cluster{Namespaces: []string{"prod", ""}, Services: []Service{{Namespace: "prod", Name: "web", Endpoints: []Endpoint{{Ready: true}}}, {Name: "", ExternalName: "."}}}
	f.Fuzz(func(t *testing.T, name, qtype string) {
		answer, why := Resolve(c, Question{name, qtype})
		if len(answer) > 0 && !why.Exists() {
			t.Errorf("%q %q: %v, but %v", name, qtype, answer, why)
		}
	})
}
