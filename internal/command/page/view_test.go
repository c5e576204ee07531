package page

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	kubepath "github.com/fairway-net/fairway/internal/kube/path"
	web "github.com/fairway-net/fairway/internal/path/page"
	"github.com/fairway-net/fairway/internal/service"
)

// objects are a shop: web with a ready and a broken pod, a headless and an external Service, and a Service of type
// LoadBalancer without an address.
const objects = `
- {kind: Node, metadata: {name: node-1, labels: {topology.kubernetes.io/zone: a}}, status: {addresses: [{type: InternalIP, address: 192.168.49.2}]}}
- {kind: Node, metadata: {name: node-2}, status: {addresses: [{type: InternalIP, address: 192.168.49.3}]}}
- {kind: Service, metadata: {name: web, namespace: shop}, spec: {type: NodePort, clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], internalTrafficPolicy: Local, selector: {app: web}, ports: [{name: http, port: 80, nodePort: 30080}]}}
- {kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: None, clusterIPs: [None], selector: {app: web}, ports: [{port: 80}]}}
- {kind: Service, metadata: {name: out, namespace: shop}, spec: {type: ExternalName, externalName: db.example.com}}
- {kind: Service, metadata: {name: front, namespace: shop}, spec: {type: LoadBalancer, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80}]}}
- {kind: EndpointSlice, metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [
    {addresses: [10.244.1.5], nodeName: node-1, conditions: {ready: true, serving: true}, targetRef: {kind: Pod, name: web-a}},
    {addresses: [10.244.2.6], nodeName: node-2, conditions: {ready: true, serving: true}, targetRef: {kind: Pod, name: web-b}},
    {addresses: [10.244.1.7], nodeName: node-1, conditions: {ready: false, serving: false}, targetRef: {kind: Pod, name: web-c}}]}
- {kind: EndpointSlice, metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db, service.kubernetes.io/headless: ""}}, addressType: IPv4, ports: [{port: 80}], endpoints: [
    {addresses: [10.244.1.5], nodeName: node-1, conditions: {ready: true, serving: true}, targetRef: {kind: Pod, name: web-a}}]}
- {kind: Pod, metadata: {name: web-a, namespace: shop, labels: {app: web}}, spec: {nodeName: node-1}, status: {phase: Running, podIPs: [{ip: 10.244.1.5}]}}
- {kind: Pod, metadata: {name: web-b, namespace: shop, labels: {app: web}}, spec: {nodeName: node-2}, status: {phase: Running, podIPs: [{ip: 10.244.2.6}]}}
- {kind: Pod, metadata: {name: web-c, namespace: shop, labels: {app: web}}, spec: {nodeName: node-1, containers: [{name: c, readinessProbe: {httpGet: {path: /healthz, port: 8080}}}]}, status: {phase: Running, podIPs: [{ip: 10.244.1.7}]}}
- {kind: Namespace, metadata: {name: shop}}
- {kind: NetworkPolicy, metadata: {name: deny, namespace: shop}, spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}}
`

// shop returns a source that has read the objects.
func shop(t *testing.T) *source {
	t.Helper()
	var all kubepath.Objects
	if err := all.Parse(strings.NewReader("kind: List\nitems:\n"+objects), "default"); err != nil {
		t.Fatal(err)
	}
	var list []runtime.Object
	for i := range all.Nodes {
		list = append(list, &all.Nodes[i])
	}
	for i := range all.Services {
		list = append(list, &all.Services[i])
	}
	for i := range all.Slices {
		list = append(list, &all.Slices[i])
	}
	for i := range all.Pods {
		list = append(list, &all.Pods[i])
	}
	for i := range all.Namespaces {
		list = append(list, &all.Namespaces[i])
	}
	for i := range all.Policies {
		list = append(list, &all.Policies[i])
	}
	// The other requests find nothing: no settings of agents, no objects of metallb.io.
	nothing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
	}))
	t.Cleanup(nothing.Close)
	connection := kube.Connection{Master: nothing.URL}
	balancers, err := loadbalancer.ConnectAnnounced(connection, "metallb-system", "")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	client := fake.NewClientset(list...)
	custom, err := kube.ConnectCustom(connection)
	if err != nil {
		t.Fatal(err)
	}
	store := kube.New(kube.Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Client: client, AllNodes: true})
	s := &source{env: command.Env{Stderr: &log}, connection: connection, balancers: balancers, live: kubepath.Watch(store, client, custom)}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	select {
	case <-s.live.Synced():
	case <-time.After(20 * time.Second):
		t.Fatal("no lists", log.String())
	}
	return s
}

func TestView(t *testing.T) {
	s := shop(t)
	view := func(name, node, from string) *web.View {
		t.Helper()
		v, err := s.View(t.Context(), api.Name{Namespace: "shop", Name: name}, node, from)
		if err != nil || v == nil {
			t.Fatal(v, err)
		}
		return v
	}
	v := view("web", "", "pod")
	if v.Node != "node-1" || v.Zone != "a" || v.Selector != "app=web" || v.Service.Ready != 2 || len(v.Groups) != 2 {
		t.Fatalf("%+v", v)
	}
	inside, outside := v.Groups[0], v.Groups[1] // the ClusterIP has policy Local
	want := []web.Endpoint{
		{Address: "10.244.1.5:8080", Pod: "web-a", Node: "node-1", Used: true, Share: 1, Health: "ready"},
		{Address: "10.244.1.7:8080", Pod: "web-c", Node: "node-1", Reason: "not ready", Health: "not ready: its readiness probe fails (HTTP :8080/healthz)"},
		{Address: "10.244.2.6:8080", Pod: "web-b", Node: "node-2", Reason: "on another node, and the traffic policy is Local", Health: "ready"},
	}
	if !slices.Equal(inside.Endpoints, want) || inside.Frontends[0].Address != "10.96.0.9:80/TCP" {
		t.Errorf("%+v\nwant\n%+v", inside, want)
	}
	if f := outside.Frontends[0]; f.Kind != "NodePort" || !slices.Equal(f.ServedAt, []string{"192.168.49.2"}) || outside.Endpoints[0].Share != 0.5 {
		t.Errorf("%+v", outside)
	}
	if p := v.Policies; p.Pods != 3 || len(p.Selecting) != 1 || p.Selecting[0] != (web.PolicyOfPods{Direction: "ingress", Name: "shop/deny", Pods: 3}) {
		t.Errorf("%+v", p)
	}
	if len(v.Unread) > 0 || len(v.Findings) > 0 {
		t.Errorf("%v %v", v.Unread, v.Findings)
	}
	if v := view("web", "node-2", "node"); v.Groups[0].Endpoints[0].Address != "10.244.2.6:8080" || v.From != "node" {
		t.Errorf("%+v", v)
	}
	if v := view("db", "", ""); len(v.Groups) != 1 || len(v.Groups[0].Frontends) != 0 || !v.Groups[0].Endpoints[0].Used || v.Service.Addresses[0] != "headless" {
		t.Errorf("%+v", v)
	}
	if v := view("out", "", ""); len(v.Groups) != 0 || v.Service.Addresses[0] != "db.example.com" || len(v.Findings) != 0 {
		t.Errorf("%+v", v)
	}
	if v := view("front", "", ""); !slices.Contains(v.Service.Addresses, "<pending>") || !slices.Contains(v.Findings, "no endpoints") {
		t.Errorf("%+v", v)
	}
	if v, err := s.View(t.Context(), api.Name{Namespace: "shop", Name: "nobody"}, "", ""); v != nil || err != nil {
		t.Error(v, err)
	}
	if _, err := s.View(t.Context(), api.Name{Namespace: "shop", Name: "web"}, "node-9", ""); err == nil || !strings.Contains(err.Error(), "kubectl get nodes") {
		t.Error(err)
	}
}

// TestPublish shows that all Services become rows, headless and external ones included.
func TestPublish(t *testing.T) {
	s := shop(t)
	names := s.take()
	if len(names) != 4 || s.changes != 1 {
		t.Errorf("%v, %d changes", names, s.changes)
	}
	p := publisher{source: s, page: web.New("127.0.0.1:1", "x", s)}
	p.pass(true, false)
	p.publish(names)
	if nodes := s.nodeNames(); !slices.Equal(nodes, []string{"node-1", "node-2"}) || !p.stale {
		t.Error(nodes, p.stale)
	}
}

// TestManyFrontends shows that a Service with thousands of ports makes no huge answer.
func TestManyFrontends(t *testing.T) {
	var r service.Report
	for i := range 3000 {
		e := service.EndpointReport{Address: fmt.Sprintf("10.0.0.1:%d", i), Used: true}
		r.Frontends = append(r.Frontends, service.FrontendReport{Address: fmt.Sprint(i), Traffic: []service.TrafficReport{{Endpoints: []service.EndpointReport{e}}}})
	}
	if all, more := groups(r, health{}); len(all) != maxGroups || more != 3000-maxGroups {
		t.Errorf("%d groups, %d more", len(all), more)
	}
	for i := range r.Frontends {
		r.Frontends[i].Traffic = r.Frontends[0].Traffic
	}
	if all, more := groups(r, health{}); len(all) != 1 || len(all[0].Frontends) != maxFrontends || more != 3000-maxFrontends {
		t.Errorf("%d groups, %d more", len(all), more)
	}
}
