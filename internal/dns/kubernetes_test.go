package dns

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// fill makes a small cluster: a ClusterIP Service of both families, a headless one
// with a ready, a named and an unready pod, one without pods, and an alias.
func fill(api *apiServer) {
	for _, ns := range []string{"default", "prod"} {
		api.put("namespaces", "", ns, object{})
	}
	api.put("services", "prod", "web", object{"spec": object{
		"type": "ClusterIP", "clusterIP": "10.96.0.7", "clusterIPs": []string{"10.96.0.7", "fd00:96::7"},
		"ports": []object{{"name": "http", "protocol": "TCP", "port": 80}, {"name": "stats", "protocol": "UDP", "port": 9}},
	}})
	api.put("services", "prod", "db", object{"spec": object{
		"type": "ClusterIP", "clusterIP": "None", "clusterIPs": []string{"None"},
		"ports": []object{{"name": "sql", "protocol": "TCP", "port": 5432}},
	}})
	api.put("endpointslices", "prod", "db-x", object{
		"labels": object{"kubernetes.io/service-name": "db"}, "addressType": "IPv4",
		"ports": []object{{"name": "sql", "protocol": "TCP", "port": 5432}},
		"endpoints": []object{
			{"addresses": []string{"10.244.1.2"}, "hostname": "db-0", "conditions": object{"ready": true}},
			{"addresses": []string{"10.244.2.3"}, "conditions": object{"ready": true}},
			{"addresses": []string{"10.244.2.4"}, "hostname": "db-2", "conditions": object{"ready": false}},
		},
	})
	api.put("endpointslices", "prod", "db-y", object{
		"labels": object{"kubernetes.io/service-name": "db"}, "addressType": "IPv6",
		"ports": []object{{"name": "sql", "protocol": "TCP", "port": 5432}},
		"endpoints": []object{
			{"addresses": []string{"fd00:244::2"}, "hostname": "db-0", "conditions": object{"ready": true}},
		},
	})
	api.put("services", "prod", "idle", object{"spec": object{
		"type": "ClusterIP", "clusterIP": "None", "clusterIPs": []string{"None"},
	}})
	api.put("services", "prod", "mail", object{"spec": object{"type": "ExternalName", "externalName": "mx.example.org"}})
}

func TestCluster(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	fill(api)
	r := serve(t, Config{Corefile: builtinFor(t, 5320, api.URL, "")})
	for _, c := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"web.prod.svc.cluster.local.", dns.TypeA, "NOERROR A 10.96.0.7"},
		{"WEB.prod.SVC.cluster.local.", dns.TypeA, "NOERROR A 10.96.0.7"},
		{"web.prod.svc.cluster.local.", dns.TypeAAAA, "NOERROR AAAA fd00:96::7"},
		// The weights are CoreDNS's: 100 shared by the addresses.
		{"_http._tcp.web.prod.svc.cluster.local.", dns.TypeSRV, "NOERROR SRV 0 50 80 web.prod.svc.cluster.local."},
		{"_stats._udp.web.prod.svc.cluster.local.", dns.TypeSRV, "NOERROR SRV 0 50 9 web.prod.svc.cluster.local."},
		{"7.0.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR PTR web.prod.svc.cluster.local."},
		{"7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, "NOERROR PTR web.prod.svc.cluster.local."},
		// Headless: only ready pods, each under its own name too.
		{"db.prod.svc.cluster.local.", dns.TypeA, "NOERROR A 10.244.1.2 | A 10.244.2.3"},
		{"db.prod.svc.cluster.local.", dns.TypeAAAA, "NOERROR AAAA fd00:244::2"},
		{"db-0.db.prod.svc.cluster.local.", dns.TypeA, "NOERROR A 10.244.1.2"},
		{"10-244-2-3.db.prod.svc.cluster.local.", dns.TypeA, "NOERROR A 10.244.2.3"},
		{"db-2.db.prod.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"_sql._tcp.db.prod.svc.cluster.local.", dns.TypeSRV, "NOERROR SRV 0 33 5432 10-244-2-3.db.prod.svc.cluster.local. | SRV 0 33 5432 db-0.db.prod.svc.cluster.local."},
		{"2.1.244.10.in-addr.arpa.", dns.TypePTR, "NOERROR PTR db-0.db.prod.svc.cluster.local."},
		{"mail.prod.svc.cluster.local.", dns.TypeCNAME, "NOERROR CNAME mx.example.org."},
		{"1-2-3-4.prod.pod.cluster.local.", dns.TypeA, "NOERROR A 1.2.3.4"},
		{"dns-version.cluster.local.", dns.TypeTXT, `NOERROR TXT "1.1.0"`},
		// The name exists but not the type, and the name does not exist.
		{"web.prod.svc.cluster.local.", dns.TypeMX, "NOERROR"},
		{"prod.svc.cluster.local.", dns.TypeA, "NOERROR"},
		{"idle.prod.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"web.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"web.nowhere.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"9.0.96.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN"},
	} {
		m, err := ask("udp", 5320, c.name, c.qtype)
		if err != nil {
			t.Errorf("%s %s: %v", c.name, dns.TypeToString[c.qtype], err)
			continue
		}
		if got := answer(m); got != c.want {
			t.Errorf("%s %s: got %q, want %q", c.name, dns.TypeToString[c.qtype], got, c.want)
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	noneLeft(t)
}

// A name that did not exist a moment ago is answered as soon as it does: the cache
// must not have kept the denial.
func TestNewServiceIsAnsweredAtOnce(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	fill(api)
	up, _ := upstream(t, "192.0.2.7")
	r := serve(t, Config{Corefile: builtinFor(t, 5321, api.URL, up)})
	says := func(want string) func() error {
		return func() error {
			m, err := ask("udp", 5321, "late.default.svc.cluster.local.", dns.TypeA)
			if err != nil {
				return err
			}
			if got := answer(m); got != want {
				return fmt.Errorf("got %q, want %q", got, want)
			}
			return nil
		}
	}
	if err := says("NXDOMAIN")(); err != nil {
		t.Fatal(err)
	}
	spec := object{"spec": object{"type": "ClusterIP", "clusterIP": "10.96.0.99", "clusterIPs": []string{"10.96.0.99"}}}
	api.put("services", "default", "late", spec)
	eventually(t, "the new Service", says("NOERROR A 10.96.0.99"))
	api.send("DELETED", "services", "default", "late", spec)
	eventually(t, "the Service to be gone", says("NXDOMAIN"))

	// An alias to a name outside is followed through the upstream.
	m, err := ask("udp", 5321, "mail.prod.svc.cluster.local.", dns.TypeA)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := answer(m), "NOERROR A 192.0.2.7 | CNAME mx.example.org."; got != want {
		t.Errorf("alias: got %q, want %q", got, want)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	noneLeft(t)
}

// builtinFor writes the built-in Corefile for a test: with an upstream that, unlike
// any in a resolv.conf, has a port of its own, or none; and without the long lame
// duck time.
func builtinFor(t *testing.T, port uint16, master, up string, allow ...netip.Prefix) string {
	t.Helper()
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	rewrite(t, resolv, "")
	if up != "" {
		rewrite(t, resolv, "nameserver 192.0.2.53\n")
	}
	text, err := New(Config{Port: port, Master: master, ResolvConf: resolv, AllowFrom: allow}).Corefile()
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		"forward . " + resolv: "forward . " + up,
		"lameduck 5s":         "lameduck 10ms",
	} {
		if up == "" && strings.HasPrefix(from, "forward") {
			continue
		}
		if strings.Count(text, from) != 1 {
			t.Fatalf("the built-in Corefile does not have %q once:\n%s", from, text)
		}
		text = strings.Replace(text, from, to, 1)
	}
	return corefile(t, "%s", text)
}
