package dns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/fairway-net/fairway/internal/dns/records"
)

// TestServerAgreesWithResolve: the server answers random questions about a random cluster as records.Resolve does.
func TestServerAgreesWithResolve(t *testing.T) {
	if !alone(t) {
		return
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	c := randomCluster(r)
	api := newAPIServer(t)
	putCluster(api, c)
	serve(t, Config{Corefile: builtinFor(t, 5322, api.URL, "")})
	reasons := map[records.Why]int{}
	for range 1500 {
		q := randomQuestion(r, c)
		want, why := records.Resolve(c, q)
		reasons[why]++
		m, err := ask("tcp", 5322, q.Name, dns.StringToType[q.Type])
		if err != nil {
			t.Fatal(err)
		}
		var got []records.Record
		for _, rr := range m.Answer {
			got = append(got, records.Record{Type: dns.TypeToString[rr.Header().Rrtype], Data: strings.TrimPrefix(rr.String(), rr.Header().String())})
		}
		slices.SortFunc(got, func(a, b records.Record) int { return strings.Compare(a.Type+" "+a.Data, b.Type+" "+b.Data) })
		slices.SortFunc(want, func(a, b records.Record) int { return strings.Compare(a.Type+" "+a.Data, b.Type+" "+b.Data) })
		if exists := m.Rcode == dns.RcodeSuccess; why != records.OtherZone && (exists != why.Exists() || !slices.Equal(slices.Compact(got), want)) {
			t.Errorf("seed %d: %s %s: the server says %s %v, Resolve %v: %v", seed, q.Name, q.Type, dns.RcodeToString[m.Rcode], got, want, why)
		}
	}
	if len(reasons) < 12 {
		t.Errorf("seed %d: few reasons were met: %v", seed, reasons)
	}
}

func pick[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// randomCluster has few names and addresses, so that random questions meet them.
func randomCluster(r *rand.Rand) records.Cluster {
	c := records.Cluster{Namespaces: []string{"a", "b"}}
	ports := func(limit int) (all []records.Port) {
		for i := range r.IntN(limit) {
			all = append(all, records.Port{Name: fmt.Sprintf("p%d", i), Proto: pick(r, "TCP", "UDP"), Number: uint16(1 + r.IntN(9))})
		}
		return all
	}
	for i := range 30 {
		s := records.Service{Namespace: pick(r, "a", "b", "gone"), Name: fmt.Sprintf("s%d", i)}
		switch r.IntN(4) {
		case 0:
			s.ExternalName = pick(r, "mx.example.org", "192.0.2.1", fmt.Sprintf("s%d.%s.svc.cluster.local", r.IntN(30), pick(r, "a", "b")), "h0.s1.a.svc.cluster.local")
			c.Services = append(c.Services, s)
			continue
		case 1:
			s.Ports = append(ports(3), records.Port{Name: "http", Proto: "TCP", Number: 80})
			s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})}
			if r.IntN(2) == 0 {
				s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr(fmt.Sprintf("fd00:96::%x", i)))
			}
		}
		for n := range r.IntN(3) {
			of := ports(4)
			for range r.IntN(4) {
				e := records.Endpoint{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(20))}), Ready: r.IntN(4) > 0, Ports: of}
				if n == 1 {
					e.Address = netip.MustParseAddr(fmt.Sprintf("fd00::%x", r.IntN(9)))
				}
				if r.IntN(3) == 0 {
					e.Hostname = fmt.Sprintf("h%d", r.IntN(3))
				}
				s.Endpoints = append(s.Endpoints, e)
			}
		}
		c.Services = append(c.Services, s)
	}
	return c
}

// putCluster writes a cluster as objects, an EndpointSlice for each endpoint.
func putCluster(api *apiServer, c records.Cluster) {
	ports := func(of []records.Port) (all []object) {
		for _, p := range of {
			all = append(all, object{"name": p.Name, "protocol": p.Proto, "port": p.Number})
		}
		return all
	}
	for _, ns := range c.Namespaces {
		api.put("namespaces", "", ns, object{})
	}
	for _, s := range c.Services {
		spec := object{"type": "ClusterIP", "clusterIP": "None", "clusterIPs": []string{"None"}, "ports": ports(s.Ports)}
		if s.ExternalName != "" {
			spec = object{"type": "ExternalName", "externalName": s.ExternalName}
		} else if len(s.ClusterIPs) > 0 {
			spec["clusterIP"], spec["clusterIPs"] = s.ClusterIPs[0], s.ClusterIPs
		}
		api.put("services", s.Namespace, s.Name, object{"spec": spec})
		for i, e := range s.Endpoints {
			family, endpoint := "IPv4", object{"addresses": []string{e.Address.String()}, "conditions": object{"ready": e.Ready}}
			if e.Address.Is6() {
				family = "IPv6"
			}
			if e.Hostname != "" {
				endpoint["hostname"] = e.Hostname
			}
			api.put("endpointslices", s.Namespace, fmt.Sprintf("%s-%d", s.Name, i), object{
				"labels": object{"kubernetes.io/service-name": s.Name}, "addressType": family, "ports": ports(e.Ports), "endpoints": []object{endpoint},
			})
		}
	}
}

// randomQuestion asks for a name that may exist. It leaves out SRV records of pods' names, which CoreDNS answers with port 0.
func randomQuestion(r *rand.Rand, c records.Cluster) records.Question {
	if r.IntN(5) == 0 {
		name, _ := dns.ReverseAddr(pick(r, fmt.Sprintf("10.0.0.%d", r.IntN(21)), fmt.Sprintf("10.96.0.%d", r.IntN(31)), fmt.Sprintf("fd00::%x", r.IntN(10)), fmt.Sprintf("fd00:96::%x", r.IntN(31))))
		return records.Question{Name: name, Type: "PTR"}
	}
	qtype := pick(r, "A", "A", "AAAA", "SRV", "CNAME", "MX", "PTR")
	if r.IntN(10) == 0 {
		return records.Question{Name: pick(r, "10-0-0-1", "fd00--1", "s1", "1-2-3") + "." + pick(r, "a", "b", "gone") + ".pod.cluster.local.", Type: pick(r, "A", "AAAA", "MX")}
	}
	s := c.Services[r.IntN(len(c.Services))]
	name := pick(r, s.Name, s.Name, s.Name, "none") + "." + pick(r, s.Namespace, s.Namespace, s.Namespace, "a", "gone")
	switch r.IntN(6) {
	case 0:
		name = pick(r, "h0", "h1", "h2", "10-0-0-1", "10-0-0-7", "fd00--1", "fd00--0") + "." + name
	case 1:
		name = pick(r, "_p0", "_p1", "_http") + "." + pick(r, "_tcp", "_udp") + "." + name
	case 2:
		name = pick(r, name, "x.y.z."+name, s.Namespace)
	}
	return records.Question{Name: name + pick(r, ".svc", ".svc", ".svc", ".SVC", ".x") + ".cluster.local.", Type: qtype}
}
