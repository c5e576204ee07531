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
	"github.com/prometheus/client_golang/prometheus"
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

// fillMore adds a Service with twelve pods, whose answer is too large for a client without EDNS0, and one with 100.
func fillMore(api *apiServer) {
	for name, pods := range map[string]int{"dozen": 12, "hundred": 100} {
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

func portOf(t *testing.T, port int) *frontPort {
	t.Helper()
	var p *frontPort
	eventually(t, "the front to open", func() error {
		fronts.mu.Lock()
		defer fronts.mu.Unlock()
		f := fronts.open[fmt.Sprintf("dns://:%d", port)]
		if f == nil {
			return fmt.Errorf("no front")
		}
		p = f.port.Load()
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
func (p *frontPort) compare(msg []byte, client *net.UDPAddr) (what string, err error) {
	for range 4 { // an object may change between two looks
		fast, _ := p.answer(nil, slices.Clone(msg), client.AddrPort().Addr().Unmap())
		if fast == nil {
			return "", nil
		}
		slow := p.coreDNS(msg, client)
		a, b := sorted(fast), sorted(slow)
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
func (p *frontPort) coreDNS(msg []byte, client net.Addr) []byte {
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
func sorted(wire []byte) []byte {
	m := new(dns.Msg)
	if m.Unpack(wire) != nil || len(m.Answer) < 2 {
		return wire
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
	"web.prod.svc", "db.prod.svc", "dozen.prod.svc", "hundred.prod.svc", "idle.prod.svc", "mail.prod.svc", "late.prod.svc", "db-0.db.prod.svc",
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

// Answers over the network come from the front, count in CoreDNS's metrics as CoreDNS's own do, and come from the address
// that the client asked. A client that acl blocks is refused.
func TestFrontAnswersAndCounts(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	fill(api)
	serve(t, Config{Corefile: corefile(t, `.:5361 {
    errors
    acl {
        block net 127.0.0.9
    }
    kubernetes cluster.local {
        endpoint %s
        pods insecure
        ttl 30
    }
    prometheus :9161
    loadbalance
    cache 30
}
`, api.URL)})
	p := portOf(t, 5361)
	var asked []*dns.Msg
	for _, name := range []string{"web.prod.svc.cluster.local.", "db.prod.svc.cluster.local.", "nobody.prod.svc.cluster.local."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			asked = append(asked, new(dns.Msg).SetQuestion(name, qtype), new(dns.Msg).SetQuestion(name, qtype).SetEdns0(1232, true))
		}
	}
	for _, to := range []string{"127.0.0.1", "127.0.0.5", "::1"} {
		askAll(t, to, asked) // acl admits the client
		before := counts(t)
		askAll(t, to, asked)
		fast := difference(counts(t), before)
		before = counts(t)
		client := &net.UDPAddr{IP: net.ParseIP(to), Port: 4000}
		for _, m := range asked {
			p.coreDNS(pack(t, m), client)
		}
		slow := difference(counts(t), before)
		if fast != slow {
			t.Errorf("asked at %s, kept answers count\n%s\nCoreDNS's\n%s", to, fast, slow)
		}
		if !strings.Contains(fast, "coredns_dns_requests_total") || !strings.Contains(fast, "coredns_acl_allowed_requests_total") {
			t.Errorf("kept answers count only\n%s", fast)
		}
	}
	if n := len(p.kept.all); n < 6 {
		t.Errorf("%d answers are kept, want 6 or more", n)
	}
	m, err := askFrom("udp", "127.0.0.9", "127.0.0.1", 5361, "web.prod.svc.cluster.local.")
	if err != nil || m.Rcode != dns.RcodeRefused {
		t.Errorf("a blocked client gets %v %v, want REFUSED", m, err)
	}
}

// askAll asks at an address of the server, and waits until the answers are counted.
func askAll(t *testing.T, to string, asked []*dns.Msg) {
	t.Helper()
	before := counts(t)
	for _, m := range asked {
		if r, _, err := new(dns.Client).Exchange(m, net.JoinHostPort(to, "5361")); err != nil || r.Id != m.Id {
			t.Fatalf("ask %s: %v", to, err)
		}
	}
	eventually(t, "all answers to be counted", func() error {
		now := counts(t)
		for _, last := range []string{"coredns_dns_responses_total", "coredns_dns_response_size_bytes"} {
			if n := total(now, last) - total(before, last); n != float64(len(asked)) {
				return fmt.Errorf("%s counts %g", last, n)
			}
		}
		return nil
	})
}

// counts returns CoreDNS's counters of questions, and of bytes without their sums of time.
func counts(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "coredns_dns_") && !strings.HasPrefix(f.GetName(), "coredns_acl_") {
			continue
		}
		for _, m := range f.Metric {
			name := f.GetName() + " " + fmt.Sprint(m.Label)
			if h := m.GetHistogram(); h != nil {
				all[name+" count"] = float64(h.GetSampleCount())
				if !strings.Contains(f.GetName(), "duration") {
					all[name+" sum"] = h.GetSampleSum()
				}
			} else if c := m.GetCounter(); c != nil {
				all[name] = c.GetValue()
			}
		}
	}
	return all
}

// total returns the sum of a metric over its labels; of a histogram the number of observations.
func total(all map[string]float64, metric string) (sum float64) {
	for name, n := range all {
		if strings.HasPrefix(name, metric+" ") && !strings.HasSuffix(name, " sum") {
			sum += n
		}
	}
	return sum
}

func difference(now, before map[string]float64) string {
	var lines []string
	for name, n := range now {
		if n != before[name] {
			lines = append(lines, fmt.Sprintf("%s %g", name, n-before[name]))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// A Corefile that changes answers has no front, and a reload follows the Corefile.
func TestFrontFollowsTheCorefile(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	fill(api)
	const text = ".:%d {\n    kubernetes cluster.local {\n        endpoint %s\n        ttl %d\n    }\n    reload 2s 1s\n%s}\n"
	path := corefile(t, text, 5362, api.URL, 30, "")
	serve(t, Config{Corefile: path})
	answered := func(ttl uint32, zones int, want string) {
		t.Helper()
		eventually(t, want, func() error {
			m, err := ask("udp", 5362, "web.prod.svc.cluster.local.", dns.TypeA)
			if err != nil {
				return err
			}
			n := zonesOf(5362)
			if answer(m) != want || m.Answer[0].Header().Ttl != ttl || n != zones {
				return fmt.Errorf("got %v, %d zones", m, n)
			}
			return nil
		})
	}
	answered(30, 1, "NOERROR A 10.96.0.7")
	rewrite(t, path, text, 5362, api.URL, 31, "    hosts {\n        192.0.2.9 web.prod.svc.cluster.local\n        ttl 31\n    }\n")
	answered(31, 0, "NOERROR A 192.0.2.9")
	rewrite(t, path, text, 5362, api.URL, 32, "")
	answered(32, 1, "NOERROR A 10.96.0.7")
	rewrite(t, path, text, 5363, api.URL, 33, "")
	portOf(t, 5363)
	eventually(t, "the previous port to be closed", func() error {
		c, err := net.ListenPacket("udp", ":5362")
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

// The zones of a front, for server blocks.
func TestFrontZones(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	k := "kubernetes cluster.local in-addr.arpa {\n endpoint " + api.URL + "\n ttl 30\n}\n"
	for i, c := range []struct{ corefile, want string }{
		{". {\n" + k + "}\n", "cluster.local"},
		{"cluster.local in-addr.arpa {\n" + k + "}\n. {\n minimal\n}\n", "cluster.local"},
		{"cluster.local {\n" + k + "}\n. {\n forward . 127.0.0.1:1\n}\n", "cluster.local"},
		{". {\n" + k + "}\na.cluster.local {\n forward . 127.0.0.1:1\n}\n", ""},
		{". {\n" + k + "}\nlocal {\n forward . 127.0.0.1:1\n}\n", ""},
		{". {\n" + k + "}\ncorp.example {\n forward . 127.0.0.1:1\n}\n", "cluster.local"},
		{". {\n" + k + "log\n}\n", ""},
		{". {\n" + k + "rewrite name a b\n}\n", ""},
		{". {\n" + k + "template IN A {\n rcode NXDOMAIN\n}\n}\n", ""},
		{". {\n" + k + "acl svc.cluster.local {\n block\n}\n}\n", ""},
		{". {\n" + k + "acl {\n block type A net 192.0.2.0/24\n}\n}\n", "cluster.local"},
		{". {\n" + k + "cache\n}\n", "cluster.local 1800"},
		{". {\n" + k + "cache 10 {\n disable success cluster.local\n prefetch 2\n}\n}\n", "cluster.local 10"},
		{". {\n" + k + "cache 10 {\n success 100 20\n}\n}\n", ""},
		{". {\n" + k + "cache {\n serve_stale\n}\n}\n", ""},
		{". {\n" + k + "loadbalance round_robin\n}\n", "cluster.local"},
	} {
		r := serve(t, Config{Corefile: corefile(t, "%s", c.corefile), Port: uint16(5370 + i)})
		eventually(t, fmt.Sprintf("the zones %q of\n%s", c.want, c.corefile), func() error {
			fronts.mu.Lock()
			defer fronts.mu.Unlock()
			got := ""
			if f := fronts.open[fmt.Sprintf("dns://:%d", 5370+i)]; f != nil {
				for _, z := range f.port.Load().zones {
					got = strings.TrimSuffix(nameOf(z.wire), ".")
					if z.cached {
						got += fmt.Sprint(" ", z.maxTTL)
					}
				}
			}
			if got != c.want {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
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
