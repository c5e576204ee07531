package service_test

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Service with ClientIP affinity, a NodePort and one endpoint, on this node, becomes
// internalTrafficPolicy Local: the endpoints are the same, but the ClusterIP must not
// share the clients' affinity with the NodePort any more.
func TestDiffPolicyLocalWithAffinity(t *testing.T) {
	svc := service.Service{
		Name: api.Name{Namespace: "default", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9")},
		Ports: []service.Port{{Proto: api.TCP, Port: 80, NodePort: 30080}}, Affinity: 3 * time.Hour,
	}
	slice := &service.Slice{
		Name: svc.Name, Service: svc.Name, Ports: []service.SlicePort{{Proto: api.TCP, Port: 8080}},
		Endpoints: []service.SliceEndpoint{{Addr: netip.MustParseAddr("10.244.1.5"), Node: "node-1", Ready: true, Serving: true}},
	}
	table := func(affinity time.Duration, local bool) *service.Table {
		o := svc
		o.Affinity, o.InternalLocal = affinity, local
		b := service.NewBuilder()
		b.Set(service.Compile(&o, []*service.Slice{slice}, service.Facts{Node: service.Node{Name: "node-1"}}))
		return b.Table(service.Settings{})
	}
	changes := service.Diff(table(svc.Affinity, false), table(svc.Affinity, true))
	if len(changes) != 1 || changes[0].Key().Addr != netip.MustParseAddrPort("10.96.0.9:80") {
		t.Errorf("changes %v, want one of the ClusterIP", changes)
	}
	if changes := service.Diff(table(0, false), table(0, true)); len(changes) > 0 {
		t.Errorf("without affinity the policy makes no difference here, but %v", changes)
	}
}

// ignored are the fields of the model that Equal leaves out, with the reason: no
// datapath reads them.
var ignored = map[string]string{
	"Frontend.Retained":       "what flow review reads: which flows may live",
	"Frontend.Termination":    "what flow review reads: which connections end",
	"Frontend.Ejection":       "only datapaths that see connections fail read it; the kernel's rules do not have it",
	"Route.Spare":             "as Frontend.Ejection",
	"Frontend.Internal.Spare": "as Frontend.Ejection",
	"Frontend.External.Spare": "as Frontend.Ejection",
	"Settings.NodeIPs":        "they save a question to the kernel and decide nothing",
}

// Every field of the model makes a difference to Equal, or is listed with its reason.
func TestEqualComparesEveryField(t *testing.T) {
	used := map[string]bool{}
	check := func(path string, equal bool) {
		t.Helper()
		why, listed := ignored[path]
		used[path] = true
		switch {
		case equal && !listed:
			t.Errorf("%s differs, and Equal does not see it: compare it, or list it with the reason", path)
		case !equal && listed:
			t.Errorf("%s is compared; it is listed as ignored: %s", path, why)
		}
	}
	eachField(t, "Frontend", func() (reflect.Value, func() bool) {
		a, b := fullFrontend(), fullFrontend()
		return reflect.ValueOf(b).Elem(), func() bool { return a.Equal(b) || b.Equal(a) }
	}, check)
	eachField(t, "Route", func() (reflect.Value, func() bool) {
		a, b := fullFrontend().Internal, fullFrontend().Internal
		return reflect.ValueOf(b).Elem(), func() bool { return a.Equal(b) || b.Equal(a) }
	}, check)
	eachField(t, "Settings", func() (reflect.Value, func() bool) {
		a, b := fullSettings(), fullSettings()
		return reflect.ValueOf(b).Elem(), func() bool { return a.Equal(*b) || b.Equal(*a) }
	}, check)
	for path := range ignored {
		if !used[path] {
			t.Errorf("%s is listed, and there is no such field", path)
		}
	}
}

// A change of any field of Facts affects a Service with external addresses and an endpoint on the dead node. NodeAddrs,
// APIServers and OwnAddrs do not affect Services without external addresses. Dead does not affect Services without endpoints
// there, and Ejected not Services without the endpoint. Of Settings the test changes only whether the node can tell pods from other clients.
func TestFactsChangeComparesEveryField(t *testing.T) {
	fill := func() *service.Facts {
		return &service.Facts{Dead: []string{"node-3"}, Ejected: []netip.AddrPort{netip.MustParseAddrPort("10.244.3.5:8080")}, Node: service.Node{
			Name: "node-1", Zone: "a", Primary4: netip.MustParseAddr("172.18.0.11"), Primary6: netip.MustParseAddr("fd00:172:18::11"),
			Balance: service.RoundRobin, Ejection: time.Second, Unsupported: service.AlgorithmsOf(service.Maglev), RefuseExternalIPs: true, EgressOff: true, MasqueradeAll: true, Outside: true, Balances: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
			Limits: service.DefaultLimits(), NodeAddrs: service.NewAddrSet(netip.MustParseAddr("172.18.0.11")), APIServers: service.NewAddrSet(netip.MustParseAddr("172.18.0.2")),
			OwnAddrs: service.NewAddrSet(netip.MustParseAddr("172.18.0.11")),
			Settings: service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		}}
	}
	entry := func(at, node string, external ...netip.Addr) *service.Entry {
		svc := &service.Service{Name: api.Name{Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9")}, ExternalIPs: external}
		slice := &service.Slice{Service: svc.Name, Endpoints: []service.SliceEndpoint{{Addr: netip.MustParseAddr(at), Node: node}}}
		return service.Compile(svc, []*service.Slice{slice}, *fill())
	}
	external, inside, elsewhere := entry("10.244.3.5", "node-3", netip.MustParseAddr("192.0.2.1")), entry("10.244.3.5", "node-3"), entry("10.244.2.5", "node-2")
	affects := func(a, b *service.Facts, e *service.Entry) bool {
		there, back := a.ChangeFrom(*b), b.ChangeFrom(*a)
		if there.Affects(e) != back.Affects(e) || there.Affects(e) && !there.Any() || there.All() != back.All() || there.All() && !there.Affects(e) {
			t.Errorf("%+v and %+v contradict each other", there, back)
		}
		return there.Affects(e)
	}
	if change := fill().ChangeFrom(*fill()); change.Any() || affects(fill(), fill(), external) {
		t.Fatal("two Facts filled alike differ")
	}
	typ := reflect.TypeFor[service.Facts]()
	fields := append(reflect.VisibleFields(typ.Field(0).Type), typ.Field(1), typ.Field(2))
	if typ.NumField() != 3 || fields[len(fields)-2].Name != "Dead" || fields[len(fields)-1].Name != "Ejected" {
		t.Fatalf("%v has other fields than Node, Dead and Ejected: add them to the test", typ)
	}
	for _, f := range fields {
		a, b := fill(), fill()
		if field := reflect.ValueOf(b).Elem().FieldByName(f.Name); f.Name == "Settings" {
			b.Settings.Pods = nil
		} else if field.IsZero() {
			t.Fatalf("%s: give it a value in the test", f.Name)
		} else {
			mutate(t, f.Name, field)
		}
		addresses := f.Name == "NodeAddrs" || f.Name == "APIServers" || f.Name == "OwnAddrs"
		if !affects(a, b, external) {
			t.Errorf("%s makes no difference", f.Name)
		}
		if got := affects(a, b, inside); got == addresses {
			t.Errorf("%s affects a Service without external addresses: %v", f.Name, got)
		}
		if got := affects(a, b, elsewhere); got == (addresses || f.Name == "Dead" || f.Name == "Ejected") {
			t.Errorf("%s affects a Service without endpoints on the dead node: %v", f.Name, got)
		}
	}
}

// fullFrontend has a value in every field.
func fullFrontend() *service.Frontend {
	route := func(last byte) *service.Route {
		return &service.Route{
			Endpoints: []service.Endpoint{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, last}), 8080), Local: true, Weight: 3}},
			Action:    service.Forward, Masquerade: service.MasqueradeAll, Local: true, Spare: 1,
		}
	}
	return &service.Frontend{
		Addr: netip.MustParseAddrPort("10.96.0.9:80"), Proto: api.UDP, ClusterIP: true, LoadBalancer: true, OnNode: true, Balance: service.Maglev,
		Termination: service.TerminateUnready, Affinity: time.Hour, Internal: route(5), External: route(6),
		Service:  api.PortName{Name: api.Name{Namespace: "default", Name: "web"}, Port: "http"},
		Ejection: time.Second,
		Sources:  []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
		Retained: []netip.AddrPort{netip.MustParseAddrPort("10.244.1.7:8080")},
	}
}

func fullSettings() *service.Settings {
	some := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	return &service.Settings{
		Pods: some, PodInterfaces: []string{"veth*"}, NodePorts: some, ServiceCIDRs: some,
		NodeIPs: []netip.Addr{netip.MustParseAddr("172.18.0.11")},
	}
}

// eachField changes one field after the other, also those in structs, slices and behind
// pointers, and checks whether equal still holds. fill returns a value in which nothing
// is changed, with the question whether it equals another such.
func eachField(t *testing.T, name string, fill func() (reflect.Value, func() bool), check func(path string, equal bool)) {
	t.Helper()
	first, equal := fill()
	if !equal() {
		t.Fatalf("two %s filled alike differ", name)
	}
	var visit func(path string, typ reflect.Type, at func(reflect.Value) reflect.Value)
	visit = func(path string, typ reflect.Type, at func(reflect.Value) reflect.Value) {
		value := at(first)
		if value.IsZero() && path != "Route.Action" && path != "Frontend.Internal.Action" && path != "Frontend.External.Action" {
			t.Errorf("%s: give it a value in the test", path)
			return
		}
		switch {
		case typ.Kind() == reflect.Pointer:
			visit(path, typ.Elem(), func(v reflect.Value) reflect.Value { return at(v).Elem() })
			return
		case typ.Kind() == reflect.Struct && typ.PkgPath() != "net/netip":
			for i := range typ.NumField() {
				visit(path+"."+typ.Field(i).Name, typ.Field(i).Type, func(v reflect.Value) reflect.Value { return at(v).Field(i) })
			}
			return
		case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct && typ.Elem().PkgPath() != "net/netip":
			visit(path+"[0]", typ.Elem(), func(v reflect.Value) reflect.Value { return at(v).Index(0) })
		}
		changed, equal := fill()
		mutate(t, path, at(changed))
		check(path, equal())
	}
	visit(name, first.Type(), func(v reflect.Value) reflect.Value { return v })
}

// mutate gives v another value.
func mutate(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
		return
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(v.Uint() + 1)
		return
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + int64(time.Second))
		return
	case reflect.String:
		v.SetString(v.String() + "x")
		return
	case reflect.Slice:
		v.SetLen(v.Len() - 1)
		return
	}
	switch v.Interface().(type) {
	case service.Limits:
		v.Set(reflect.Zero(v.Type()))
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("192.0.2.99")))
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("192.0.2.99:9")))
	default:
		t.Fatalf("%s: a %v cannot be changed yet", path, v.Type())
	}
}
