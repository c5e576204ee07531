package dns

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// fillLarge makes Services that are as large as a tenant can make them: huge has 40,000 endpoints of IPv4 and 1,000 of
// IPv6, ports an EndpointSlice of 1,000 endpoints with 20,000 ports, many 5,000 ports.
func fillLarge(api *apiServer) {
	headless := func(name string) {
		api.put("services", "prod", name, object{"spec": object{"type": "ClusterIP", "clusterIP": "None", "clusterIPs": []string{"None"}}})
	}
	slice := func(of string, i int, family string, ports []object, address func(n int) string) {
		var all []object
		for n := range 1000 {
			e := object{"addresses": []string{address(i*1000 + n)}, "conditions": object{"ready": true}}
			if i == 7 {
				e["hostname"] = fmt.Sprintf("huge-%d", n)
			}
			all = append(all, e)
		}
		api.put("endpointslices", "prod", fmt.Sprintf("%s-%s-%d", of, family, i), object{
			"labels": object{"kubernetes.io/service-name": of}, "addressType": family, "ports": ports, "endpoints": all,
		})
	}
	numbered := func(n int) (ports []object) {
		for i := range n {
			ports = append(ports, object{"name": fmt.Sprintf("p%d", i+1), "protocol": "TCP", "port": i + 1})
		}
		return ports
	}
	four := func(n int) string { return fmt.Sprintf("10.%d.%d.%d", 128+n>>16, n>>8&255, n&255) }
	headless("huge")
	for i := range 40 {
		slice("huge", i, "IPv4", numbered(1), four)
	}
	slice("huge", 0, "IPv6", numbered(1), func(n int) string { return fmt.Sprintf("fd00::%x", n) })
	headless("ports")
	slice("ports", 0, "IPv4", numbered(20_000), four)
	api.put("services", "prod", "many", object{"spec": object{"type": "ClusterIP", "clusterIP": "10.96.0.9", "clusterIPs": []string{"10.96.0.9"}, "ports": numbered(5000)}})
	api.put("services", "prod", "alias", object{"spec": object{"type": "ExternalName", "externalName": "huge-3.huge.prod.svc.cluster.local"}})
}

// TestLargeServices: what is asked of Services at the API's limits is answered as CoreDNS answers it, with what a message
// holds, and whoever asks for it keeps no other from being answered.
func TestLargeServices(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	fill(api)
	fillLarge(api)
	serve(t, Config{Corefile: builtinFor(t, 5320, api.URL, "")})
	for _, c := range []struct {
		network, name string
		qtype         uint16
		answers       int // at least
		truncated     bool
		want          string // one of them
	}{
		{"udp", "huge", dns.TypeA, 25, true, "A 10."},
		{"tcp", "huge", dns.TypeA, 4000, true, "A 10."},
		{"udp", "huge", dns.TypeAAAA, 10, true, "AAAA fd00::"},
		{"tcp", "huge", dns.TypeAAAA, 1000, false, "AAAA fd00::1a"},
		{"udp", "huge", dns.TypeTXT, 0, false, "NOERROR"},
		{"udp", "huge-3.huge", dns.TypeA, 1, false, "NOERROR A 10.128.27.91"},
		{"udp", "10-128-156-63.huge", dns.TypeA, 1, false, "NOERROR A 10.128.156.63"},
		{"udp", "10-128-156-64.huge", dns.TypeA, 0, false, "NXDOMAIN"},
		{"udp", "fd00--0.huge", dns.TypeAAAA, 1, false, "NOERROR AAAA fd00::"},
		{"udp", "fd00--3e7.huge", dns.TypeAAAA, 1, false, "NOERROR AAAA fd00::3e7"},
		{"udp", "fd00--3e7.huge", dns.TypeA, 0, false, "NOERROR"},
		{"udp", "alias", dns.TypeA, 2, false, "A 10.128.27.91"},
		{"udp", "ports", dns.TypeA, 25, true, "A 10.128."},
		{"tcp", "ports", dns.TypeA, 1000, false, "A 10.128.3.231"},
		{"tcp", "ports", dns.TypeSRV, 900, true, "SRV 0 "},
		{"tcp", "_p19999._tcp.ports", dns.TypeSRV, 900, true, " 19999 "},
		{"tcp", "_p20001._tcp.ports", dns.TypeSRV, 0, false, "NXDOMAIN"},
		{"udp", "many", dns.TypeA, 1, false, "NOERROR A 10.96.0.9"},
		{"udp", "_p4999._tcp.many", dns.TypeSRV, 1, false, "SRV 0 100 4999 "},
		{"tcp", "many", dns.TypeSRV, 900, true, "SRV 0 "},
		{"udp", "db", dns.TypeSRV, 2, false, " 5432 db-0.db.prod"},
	} {
		m, err := ask(c.network, 5320, c.name+".prod.svc.cluster.local.", c.qtype)
		if err != nil {
			t.Errorf("%s %s %s: %v", c.network, c.name, dns.TypeToString[c.qtype], err)
			continue
		}
		got := answer(m)
		if len(m.Answer) < c.answers || m.Truncated != c.truncated || !strings.Contains(got, c.want) {
			t.Errorf("%s %s %s: %d answers, truncated %v: %.200s", c.network, c.name, dns.TypeToString[c.qtype], len(m.Answer), m.Truncated, got)
		}
	}
	m, err := ask("udp", 5320, "63.156.128.10.in-addr.arpa.", dns.TypePTR)
	if err != nil || !strings.Contains(answer(m), "PTR 10-128-156-63.huge.prod.svc.cluster.local.") {
		t.Errorf("reverse: %v, %v", m, err)
	}
	othersAreAnswered(t)
}

// othersAreAnswered asks for a Service while 50 clients ask for the large ones as fast as they can.
func othersAreAnswered(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range 50 {
		clients.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				name := []string{"huge", "ports", "many", "no-such.huge", "_p1._tcp.ports"}[n%5]
				q := new(dns.Msg).SetQuestion(name+".prod.svc.cluster.local.", []uint16{dns.TypeA, dns.TypeSRV}[n%2])
				c := &dns.Client{Timeout: 2 * time.Second}
				_, _, _ = c.ExchangeContext(ctx, q, "127.0.0.1:5320")
			}
		})
	}
	var longest time.Duration
	for range 100 {
		began := time.Now()
		if m, err := ask("udp", 5320, "web.prod.svc.cluster.local.", dns.TypeA); err != nil || answer(m) != "NOERROR A 10.96.0.7" {
			t.Errorf("another's name: %v after %v, %v", m, time.Since(began), err)
			break
		}
		longest = max(longest, time.Since(began))
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	clients.Wait()
	t.Logf("another's name was answered within %v", longest)
}
