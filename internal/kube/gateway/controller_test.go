package gateway

import (
	"encoding/json"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
)

// TestAllocate: a port keeps its bind port, a freed bind port is not taken at once, and ports beyond the range get none.
func TestAllocate(t *testing.T) {
	key := func(port uint16) gateway.BindKey { return gateway.BindKey{Proto: api.TCP, Port: port} }
	first, last := allocate(nil, map[string][]gateway.BindKey{"a": {key(80), key(443)}, "b": {key(80)}}, 0)
	if want := (map[string]portMap{"a": {key(80): 20000, key(443): 20001}, "b": {key(80): 20002}}); !reflect.DeepEqual(first, want) || last != 20002 {
		t.Errorf("first %v, last %d", first, last)
	}
	second, last := allocate(first, map[string][]gateway.BindKey{"b": {key(80), key(81)}}, last)
	if want := (map[string]portMap{"b": {key(80): 20002, key(81): 20003}}); !reflect.DeepEqual(second, want) {
		t.Errorf("after a Gateway is gone: %v", second)
	}
	third, _ := allocate(second, map[string][]gateway.BindKey{"b": {key(80)}, "c": {key(1), key(2)}}, lastBind-1)
	if want := (map[string]portMap{"b": {key(80): 20002}, "c": {key(1): lastBind, key(2): firstBind}}); !reflect.DeepEqual(third, want) {
		t.Errorf("at the end of the range: %v", third)
	}
	var many []gateway.BindKey
	for i := range lastBind - firstBind + 2 {
		many = append(many, key(uint16(i+1)))
	}
	if all, _ := allocate(nil, map[string][]gateway.BindKey{"a": many}, last); len(all["a"]) != lastBind-firstBind+1 {
		t.Errorf("%d ports of %d got one", len(all["a"]), len(many))
	}
}

// TestServiceName: names of Gateways that are no DNS labels give other names, and never the same.
func TestServiceName(t *testing.T) {
	names := map[string]bool{}
	for _, gateway := range []string{"shop", "shop.example", "1", strings.Repeat("a", 253), strings.Repeat("a", 252)} {
		names[serviceName(gateway)] = true
		if n := serviceName(gateway); len(n) > 63 || strings.Contains(n, ".") {
			t.Errorf("%q", n)
		}
	}
	if !names["shop-fairway"] || len(names) != 5 {
		t.Errorf("%v", names)
	}
}

// TestController: a Gateway with a route gets a bind port, a Service, EndpointSlices with the gateway's pods, and a status.
// A TCPRoute leads to the pods themselves.
func TestController(t *testing.T) {
	ready := true
	node := "node-1"
	slice := func(namespace, svc, port string, number int32, addr string) *discoveryv1.EndpointSlice {
		proto := corev1.ProtocolTCP
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: svc + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: svc}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number, Protocol: &proto}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{addr}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}}
	}
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: bindsName}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}}}},
		slice("kube-system", ingressService, "http", 8080, "10.0.0.1"), slice("shop", "db", "sql", 15432, "10.0.0.7"),
	)
	patches := make(chan string, 100)
	record := func(a clienttesting.Action) (bool, runtime.Object, error) {
		p := a.(clienttesting.PatchAction)
		patches <- p.GetResource().Resource + "/" + p.GetName() + " " + string(p.GetPatch())
		return true, nil, nil
	}
	client.PrependReactor("patch", "*", record)
	route := func(kind, name, section string) any {
		return custom(kind, "shop", name, map[string]any{"parentRefs": []any{map[string]any{"name": "front", "sectionName": section}},
			"rules": []any{map[string]any{"backendRefs": []any{map[string]any{"name": "db", "port": int64(5432)}}}}})
	}
	objects := newCustom(t,
		custom("GatewayClass", "", "fairway", map[string]any{"controllerName": ControllerName}),
		custom("Gateway", "shop", "front", map[string]any{"gatewayClassName": "fairway", "listeners": []any{
			map[string]any{"name": "http", "port": int64(80), "protocol": "HTTP"}, map[string]any{"name": "sql", "port": int64(5432), "protocol": "TCP"}}}),
		custom("RoutePolicy", "shop", "p", map[string]any{"targetRefs": []any{map[string]any{"group": gateway.Group, "kind": "HTTPRoute", "name": "r"}}, "clients": map[string]any{"allow": []any{"all"}}}))
	for _, k := range customKinds {
		if k.kind == gateway.KindHTTPRoute || k.kind == gateway.KindTCPRoute {
			section := map[gateway.Kind]string{gateway.KindHTTPRoute: "http", gateway.KindTCPRoute: "sql"}[k.kind]
			o := route(string(k.kind), "r", section)
			if err := objects.Tracker().Create(k.resource, o.(runtime.Object), "shop"); err != nil {
				t.Fatal(err)
			}
		}
	}
	objects.PrependReactor("patch", "*", record)
	log := slog.New(slog.DiscardHandler)
	s := kube.New(kube.Config{Log: log, Client: client, Custom: objects, AllNodes: true})
	c := NewController(log, s, kube.NewRecorder(log, client, "test"), ControllerConfig{Namespace: "kube-system"})
	runAll(t, s, c)
	want := controllerWrites()
	end := time.After(deadline)
	for len(want) > 0 {
		select {
		case p := <-patches:
			name, body, _ := strings.Cut(p, " ")
			if !slices.ContainsFunc(want[name], func(text string) bool { return !strings.Contains(body, text) }) {
				delete(want, name)
			} else {
				t.Log(p)
			}
		case <-end:
			t.Fatalf("not written: %v", slices.Collect(maps.Keys(want)))
		}
	}
	o, err := client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), bindsName, metav1.GetOptions{})
	if err != nil || len(parsePorts(o.Data["uid-of-front"])) != 2 {
		t.Errorf("bind ports %v, %v", o, err)
	}
	if _, err := json.Marshal(o); err != nil {
		t.Error(err)
	}
}

// controllerWrites returns what each written object contains.
func controllerWrites() map[string][]string {
	return map[string][]string{
		"services/front-fairway":                             {`"ports":[{"name":"tcp-80","port":80,"protocol":"TCP"},{"name":"tcp-5432","port":5432,"protocol":"TCP"}]`, `"type":"LoadBalancer"`, `"gateway.networking.k8s.io/gateway-name":"front"`, `"uid":"uid-of-front"`},
		"endpointslices/front-fairway-gateway-ipv4-0":        {`"addresses":["10.0.0.1"]`, `"port":20`, `"name":"tcp-80"`},
		"endpointslices/front-fairway-tcp-5432-15432-ipv4-0": {`"addresses":["10.0.0.7"]`, `"port":15432`, `"name":"tcp-5432"`, `"nodeName":"node-1"`},
		"gateways/front":                                     {`"AddressNotAssigned"`, `"attachedRoutes":1`},
		"routepolicies/p":                                    {`"ancestors":[{"ancestorRef":{"group":"gateway.networking.k8s.io","kind":"Gateway","name":"front","namespace":"shop"}`, `"reason":"Invalid"`, `"controllerName":"fairway.net/gateway"`},
		"httproutes/r":                                       {`"controllerName":"fairway.net/gateway"`, `"type":"Accepted"`},
		"tcproutes/r":                                        {`"type":"Accepted"`},
		"gatewayclasses/fairway":                             {`"supportedFeatures":[`, `"type":"Accepted"`},
	}
}
