package dns

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"
)

// Every kept answer is the answer of CoreDNS's plugins, byte for byte, for a random set of messages, also after changes
// of objects.
func TestKeptAnswersAreCoreDNSs(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	fill(api)
	fillMore(api)
	up, _ := upstream(t, "192.0.2.7")
	serve(t, Config{Corefile: builtinFor(t, 5360, api.URL, up)})
	p := portOf(t, 5360)
	client := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4000}
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} { // the plugin acl must know the client
		p.coreDNS(pack(t, new(dns.Msg).SetQuestion("web.prod.svc.cluster.local.", qtype)), client)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	total, kept := 0, map[string]int{}
	for round := range 6 {
		changes(api, round)
		for range 8000 {
			msg := randomMessage(rng)
			total++
			what, err := p.compare(msg, client)
			if err != nil {
				t.Fatal(err)
			}
			kept[what]++
		}
	}
	delete(kept, "")
	t.Logf("of %d messages: %v", total, kept)
	for _, what := range []string{"NOERROR 0", "NOERROR 1", "NOERROR 2", "NOERROR 12", "NXDOMAIN 0"} {
		if kept[what] < 20 {
			t.Errorf("only %d kept answers are %s", kept[what], what)
		}
	}
}

// With the plugins cache and hosts, as in k3s, kept answers are CoreDNS's, except that a cached TTL decreases.
func TestKeptAnswersWithCache(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	fill(api)
	fillMore(api)
	serve(t, Config{Corefile: corefile(t, ".:5364 {\n kubernetes cluster.local {\n endpoint %s\n pods insecure\n ttl 30\n}\n cache 30\n loadbalance\n hosts {\n  192.0.2.9 web.prod.svc.cluster.local\n  fallthrough\n}\n}\n", api.URL)})
	p := portOf(t, 5364)
	p.ignoreTTL = true
	rng, kept := rand.New(rand.NewPCG(5, 6)), 0
	for range 8000 {
		what, err := p.compare(randomMessage(rng), &net.UDPAddr{IP: net.IPv6loopback, Port: 4000})
		if err != nil {
			t.Fatal(err)
		}
		if what != "" {
			kept++
		}
	}
	if kept < 500 {
		t.Errorf("only %d answers are kept", kept)
	}
}

// fillMore adds a Service with twelve pods, whose answer is too large for a client without EDNS0, one with an answer of
// 1,224 bytes, which CoreDNS compresses for IPv6 clients, and one with 100 pods.
func fillMore(api *apiServer) {
	for name, pods := range map[string]int{"dozen": 12, "pods-025": 25, "hundred": 100} {
		api.put("services", "prod", name, object{"spec": object{"type": "ClusterIP", "clusterIP": "None", "clusterIPs": []string{"None"}}})
		var endpoints []object
		for i := range pods {
			endpoints = append(endpoints, object{"addresses": []string{fmt.Sprintf("10.244.7.%d", i+1)}, "conditions": object{"ready": true}})
		}
		api.put("endpointslices", "prod", name+"-x", object{"labels": object{"kubernetes.io/service-name": name}, "addressType": "IPv4", "endpoints": endpoints})
	}
}

// changes creates, changes and deletes objects that questions are about.
func changes(api *apiServer, round int) {
	if round == 0 {
		return
	}
	ip := fmt.Sprintf("10.96.1.%d", round)
	spec := object{"spec": object{"type": "ClusterIP", "clusterIP": ip, "clusterIPs": []string{ip}, "ports": []object{{"name": "http", "protocol": "TCP", "port": 80}}}}
	switch round % 3 {
	case 1:
		api.put("services", "prod", "late", spec)
		api.put("namespaces", "", "new", object{})
	case 2:
		api.send("MODIFIED", "services", "prod", "late", spec)
		api.send("MODIFIED", "endpointslices", "prod", "db-x", object{
			"labels": object{"kubernetes.io/service-name": "db"}, "addressType": "IPv4",
			"ports":     []object{{"name": "sql", "protocol": "TCP", "port": 5432}},
			"endpoints": []object{{"addresses": []string{ip}, "conditions": object{"ready": true}}, {"addresses": []string{"10.244.2.3"}, "conditions": object{"ready": true}}},
		})
	case 0:
		api.send("DELETED", "services", "prod", "late", spec)
		api.send("DELETED", "namespaces", "", "new", object{})
	}
}

// A comparable port compares its answers with CoreDNS's.
type comparablePort struct {
	*frontPort
	ignoreTTL bool
}

func portOf(t *testing.T, port int) *comparablePort {
	t.Helper()
	p := &comparablePort{}
	eventually(t, "the front to open", func() error {
		fronts.mu.Lock()
		defer fronts.mu.Unlock()
		f := fronts.open[fmt.Sprintf("dns://:%d", port)]
		if f == nil {
			return fmt.Errorf("no front")
		}
		p.frontPort = f.port.Load()
		return nil
	})
	return p
}

// zonesOf returns the number of zones that a port's front answers for; 0 without a front.
func zonesOf(port int) int {
	fronts.mu.Lock()
	defer fronts.mu.Unlock()
	if f := fronts.open[fmt.Sprintf("dns://:%d", port)]; f != nil {
		return len(f.port.Load().zones)
	}
	return 0
}

// compare returns code and number of records of the kept answer to a message, or an error if CoreDNS answers otherwise.
// The empty text means that there is no kept answer.
func (p *comparablePort) compare(msg []byte, client *net.UDPAddr) (what string, err error) {
	for range 4 { // an object may change between two looks
		fast, _ := p.answer(nil, slices.Clone(msg), client.AddrPort().Addr().Unmap())
		if fast == nil {
			return "", nil
		}
		slow := p.coreDNS(msg, client)
		a, b := p.sorted(fast), p.sorted(slow)
		if bytes.Equal(a, b) {
			m := new(dns.Msg)
			if err := m.Unpack(fast); err != nil {
				return "", err
			}
			return fmt.Sprintf("%s %d", dns.RcodeToString[m.Rcode], len(m.Answer)), nil
		}
		m := new(dns.Msg)
		_ = m.Unpack(msg)
		err = fmt.Errorf("question\n%v\nkept    %x\nCoreDNS %x", m, a, b)
	}
	return "", err
}

// coreDNS returns the answer of CoreDNS's plugins to a message.
func (p *comparablePort) coreDNS(msg []byte, client net.Addr) []byte {
	r := new(dns.Msg)
	if r.Unpack(msg) != nil {
		return nil
	}
	w := &slowWriter{client: client}
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, p.server)
	p.server.ServeDNS(context.WithValue(ctx, dnsserver.LoopKey{}, 0), w, r)
	return w.wire
}

type slowWriter struct {
	frontWriter
	client net.Addr
	wire   []byte
}

func (w *slowWriter) LocalAddr() net.Addr  { return w.client }
func (w *slowWriter) RemoteAddr() net.Addr { return w.client }
func (w *slowWriter) WriteMsg(m *dns.Msg) (err error) {
	w.wire, err = m.Pack()
	return err
}

// sorted returns a message with its answers in order, because the plugin loadbalance gives them a random one.
func (p *comparablePort) sorted(wire []byte) []byte {
	m := new(dns.Msg)
	if m.Unpack(wire) != nil || len(m.Answer) < 2 && !p.ignoreTTL {
		return wire
	}
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		if p.ignoreTTL {
			rr.Header().Ttl = 0
		}
	}
	slices.SortFunc(m.Answer, func(a, b dns.RR) int { return strings.Compare(a.String(), b.String()) })
	again, err := m.Pack()
	if err != nil || len(again) != len(wire) {
		return wire
	}
	return again
}

func pack(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	wire, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

var someNames = []string{
	"web.prod.svc", "db.prod.svc", "dozen.prod.svc", "pods-025.prod.svc", "hundred.prod.svc", "idle.prod.svc", "mail.prod.svc", "late.prod.svc", "db-0.db.prod.svc",
	"10-244-2-3.db.prod.svc", "db-2.db.prod.svc", "1-2-3-4.prod.pod", "1-2-3-4.nowhere.pod", "x.prod.pod", "prod.svc", "new.svc", "nowhere.svc",
	"svc", "pod", "", "ns.dns", "dns-version", "_http._tcp.web.prod.svc", "*.prod.svc", "web.*.svc", "a.b.c.d.e.svc", "www.example.com",
	"www.example.com.prod.svc", "www.example.com.svc", "web.prod.svc.cluster.local.prod.svc", "x.y", "fd00--1.prod.pod", "new.new.svc", "a.new.pod",
}

// randomMessage returns a message about a name of the cluster, mostly of a usual form.
func randomMessage(rng *rand.Rand) []byte {
	one := func(n int) bool { return rng.IntN(n) == 0 }
	m := new(dns.Msg)
	name := someNames[rng.IntN(len(someNames))]
	if name != "" {
		name += "."
	}
	name += []string{"cluster.local.", "cluster.local.", "cluster.local.", "cluster.local.", "xcluster.local.", "local."}[rng.IntN(6)]
	if one(10) { // 0x20
		b := []byte(name)
		for i := range b {
			if one(2) {
				b[i] = bytes.ToUpper(b[i : i+1])[0]
			}
		}
		name = string(b)
	}
	types := []uint16{dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeAAAA, dns.TypeSRV, dns.TypeHTTPS, dns.TypeANY, dns.TypeTXT, dns.TypeDS}
	m.SetQuestion(name, types[rng.IntN(len(types))])
	m.Id = uint16(rng.Uint32())
	m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = one(2), one(3), one(3)
	m.Zero, m.Truncated, m.Authoritative, m.RecursionAvailable, m.Response = one(40), one(40), one(40), one(40), one(60)
	if one(30) {
		m.Question[0].Qclass = []uint16{dns.ClassCHAOS, dns.ClassANY, dns.ClassNONE}[rng.IntN(3)]
	}
	if one(40) {
		m.Question = append(m.Question, m.Question[0])
	}
	if one(40) {
		m.Opcode = rng.IntN(16)
	}
	if one(2) {
		m.SetEdns0([]uint16{0, 100, 512, 600, 1232, 4096, 65535}[rng.IntN(7)], one(2))
		o := m.IsEdns0()
		if one(10) {
			o.Option = append(o.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "24a5ac1f0e9d8c7b"})
		}
		if one(20) {
			o.SetVersion(1)
		}
		if one(20) {
			o.SetZ(uint16(rng.Uint32()) & 0x7fff)
		}
		if one(20) {
			m.SetEdns0(512, true)
		}
	}
	wire, err := m.Pack()
	if err != nil {
		return nil
	}
	if one(20) {
		wire[rng.IntN(len(wire))] = byte(rng.Uint32())
	}
	if one(50) {
		wire = append(wire, byte(rng.Uint32()))
	}
	if one(50) {
		wire = wire[:rng.IntN(len(wire))]
	}
	return wire
}

// A store of kept answers has a limit, also for a client that asks for names without end.
func TestKeptAnswersAreLimited(t *testing.T) {
	s := keptStore{all: map[string]*kept{}}
	for i := range 100_000 {
		s.put(fmt.Append(nil, "name ", i), &kept{wire: make([]byte, 200)})
	}
	sum := 0
	for key, k := range s.all {
		sum += k.size(len(key))
	}
	if sum != s.bytes || sum > maxKeptBytes || sum < maxKeptBytes-2000 {
		t.Errorf("%d bytes are kept and %d counted, the limit is %d", sum, s.bytes, maxKeptBytes)
	}
}
