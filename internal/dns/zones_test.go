package dns

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/fairway-net/fairway/internal/dns/names"
)

// TestZones: a server with zones answers with real packets: UDP and TCP, a transfer to the secondary only, a change. The
// port of the zones answers nothing else.
func TestZones(t *testing.T) {
	if !alone(t) {
		return
	}
	if err := loopbackUp(); err != nil {
		t.Fatal(err)
	}
	cfg := names.Config{Zones: []string{"example.org"}, Nameservers: []string{"dns.kube-system"}, TTL: 60}
	var now atomic.Pointer[names.Table]
	up, _ := upstream(t, "198.51.100.1")
	notified := secondary(t, "127.0.0.9:53")
	serve(t, Config{
		Corefile: corefile(t, ".:1053 {\n    forward . %s\n}\n", up), Zones: cfg.Zones, Names: now.Load,
		ZoneTransferTo: []netip.Addr{netip.MustParseAddr("127.0.0.9")},
	})
	ask := func(network, name string, qtype uint16) string {
		m := new(dns.Msg)
		m.SetQuestion(name, qtype)
		r, _, err := (&dns.Client{Net: network}).Exchange(m, "127.0.0.1:8053")
		if err != nil {
			return err.Error()
		}
		var data []string
		for _, rr := range append(r.Answer, r.Ns...) {
			data = append(data, strings.Join(strings.Fields(rr.String()), " "))
		}
		return fmt.Sprintf("%s aa=%t %s", dns.RcodeToString[r.Rcode], r.Authoritative, strings.Join(data, "; "))
	}
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	want(ask("udp", "www.example.org.", dns.TypeA), "SERVFAIL aa=false ")
	service := names.Object{Ref: names.Ref{Kind: "Service", Namespace: "prod", Name: "web"}, Own: true, Hostnames: []string{"www.example.org"}}
	set := func(addrs ...string) {
		service.Addresses = nil
		for _, a := range addrs {
			service.Addresses = append(service.Addresses, netip.MustParseAddr(a))
		}
		next, _ := names.New(names.Cluster{Objects: []names.Object{service}}, cfg, now.Load(), 1)
		now.Store(next)
	}
	set("192.0.2.1", "2001:db8::1")
	soa := "example.org. 60 IN SOA dns.kube-system.example.org. hostmaster.example.org. 1 7200 1800 86400 60"
	want(ask("udp", "WwW.example.org.", dns.TypeA), "NOERROR aa=true WwW.example.org. 60 IN A 192.0.2.1")
	want(ask("tcp", "web.prod.example.org.", dns.TypeAAAA), "NOERROR aa=true web.prod.example.org. 60 IN AAAA 2001:db8::1")
	want(ask("udp", "www.example.org.", dns.TypeMX), "NOERROR aa=true "+soa)
	want(ask("udp", "none.example.org.", dns.TypeA), "NXDOMAIN aa=true "+soa)
	want(ask("udp", "www.example.com.", dns.TypeA), "REFUSED aa=false ")
	want(ask("udp", "kubernetes.default.svc.cluster.local.", dns.TypeA), "REFUSED aa=false ")
	want(ask("tcp", "example.org.", dns.TypeAXFR), "REFUSED aa=false ")
	eventually(t, "a notification of the secondary", func() error {
		if notified.Load() == 0 {
			return fmt.Errorf("none came")
		}
		return nil
	})
	if got := transferZone(t, "127.0.0.9", "127.0.0.1:8053"); len(got) != 7 || got[0] != got[6] {
		t.Errorf("the secondary gets:\n%s", strings.Join(got, "\n"))
	}
	set()
	want(ask("udp", "www.example.org.", dns.TypeA), "NXDOMAIN aa=true "+strings.Replace(soa, " 1 7200", " 2 7200", 1))
}

// secondary counts the notifications that reach an address.
func secondary(t *testing.T, addr string) *atomic.Int32 {
	t.Helper()
	var n atomic.Int32
	up := make(chan struct{})
	s := &dns.Server{Addr: addr, Net: "udp", NotifyStartedFunc: func() { close(up) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		if r.Opcode == dns.OpcodeNotify {
			n.Add(1)
		}
		m := new(dns.Msg)
		_ = w.WriteMsg(m.SetReply(r))
	})}
	go func() { _ = s.ListenAndServe() }()
	<-up
	t.Cleanup(func() { _ = s.Shutdown() })
	return &n
}

// transferZone transfers example.org from a source address.
func transferZone(t *testing.T, from, server string) (all []string) {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	m := new(dns.Msg)
	in, err := (&dns.Transfer{Conn: &dns.Conn{Conn: conn}}).In(m.SetAxfr("example.org."), server)
	if err != nil {
		t.Fatal(err)
	}
	for e := range in {
		if e.Error != nil {
			t.Fatal(e.Error)
		}
		for _, rr := range e.RR {
			all = append(all, rr.String())
		}
	}
	return all
}

// TestCheckZones: --check shows the server block of --zone.
func TestCheckZones(t *testing.T) {
	if !alone(t) {
		return
	}
	check := func(cfg Config, corefile string) string {
		var b strings.Builder
		if _, err := Check(cfg, "Corefile", []byte(corefile)).WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	const corefile = ".:53 {\n    errors\n    forward . 192.0.2.53\n}\n"
	zones := Config{Zones: []string{"example.org", "lab.example.org"}, ZoneTransferTo: []netip.Addr{netip.MustParseAddr("192.0.2.54")}}
	plain, with := check(Config{}, corefile), check(zones, corefile)
	const block = `example.org:8053 lab.example.org:8053
  prometheus :9153                                   --zone
  errors                                             --zone
  transfer                                           --zone
  names                                              --zone
`
	if at := strings.Index(plain, "note: "); at < 0 || with != plain[:at]+block+plain[at:] {
		t.Errorf("got:\n%s\nwithout zones:\n%s", with, plain)
	}
	if got := check(zones, corefile+"lab.example.org:8053 {\n    names\n}\n"); !strings.Contains(got, `cannot serve: two server blocks have the zone "lab.example.org:8053"`) {
		t.Errorf("a zone twice: got:\n%s", got)
	}
	if got := check(Config{}, corefile+"example.org {\n    names\n}\n"); !strings.Contains(got, "note: names answers SERVFAIL without --zone\n") {
		t.Errorf("names without zones: got:\n%s", got)
	}
}
