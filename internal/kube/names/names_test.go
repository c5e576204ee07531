package names

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/kube"
)

// TestObjects: the objects of a cluster become names and addresses, through the lists of an API server.
func TestObjects(t *testing.T) {
	a, store := world(t, "testdata/objects.txtar")
	o := Subscribe(store, "test")
	run(t, store, o.Subscription)
	c := o.Cluster()
	var lines []string
	for _, o := range c.Objects {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%v: own=%t hosts=%v addresses=%v targets=%v parents=%v ttl=%d", o.Ref, o.Own, o.Hostnames, o.Addresses, o.Targets, o.Parents, o.TTL)))
	}
	for _, g := range c.Gateways {
		lines = append(lines, fmt.Sprintf("Gateway %s/%s: addresses=%v targets=%v listeners=%v", g.Namespace, g.Name, g.Addresses, g.Targets, g.Listeners))
	}
	slices.Sort(lines)
	got := strings.Join(lines, "\n") + "\n"
	compare(t, "testdata/objects.txtar", a, got)
}

// compare compares names with the second part of a file. With UPDATE it writes them.
func compare(t *testing.T, path string, a *txtar.Archive, got string) {
	t.Helper()
	if len(a.Files) < 2 || got != string(a.Files[1].Data) {
		if os.Getenv("UPDATE") != "" {
			a.Files = append(a.Files[:1], txtar.File{Name: "names", Data: []byte(got)})
			_ = os.WriteFile(path, txtar.Format(a), 0o644)
		}
		t.Errorf("got:\n%s", got)
	}
}

// TestSources: by ExternalDNS's annotations Services of all types have names: of load balancers, nodes, pods.
func TestSources(t *testing.T) {
	a, store := world(t, "testdata/sources.txtar")
	o := SubscribeSources(store, "test", SourceNames)
	run(t, store, o.Subscription)
	c := o.Cluster()
	claims, _ := names.Claims(c, nil)
	entries, problems := names.Decide(claims)
	var lines []string
	for _, e := range entries {
		lines = append(lines, fmt.Sprintf("%s %v targets=%v ttl=%d of %v", e.Name, e.Addresses, e.Targets, e.TTL, e.Owner))
	}
	for _, p := range problems {
		lines = append(lines, fmt.Sprintf("%v: %s", p.About, p.Message))
	}
	for kind, listed := range o.Listed() {
		lines = append(lines, fmt.Sprintf("listed %s: %t", kind, listed))
	}
	slices.Sort(lines)
	compare(t, "testdata/sources.txtar", a, strings.Join(lines, "\n")+"\n")
}

// world returns a store of the objects in the first part of a file.
func world(t *testing.T, path string) (*txtar.Archive, *kube.Store) {
	t.Helper()
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var builtin []runtime.Object
	var custom []*unstructured.Unstructured
	for _, doc := range bytes.Split(a.Files[0].Data, []byte("---\n")) {
		var u unstructured.Unstructured
		if err := yaml.Unmarshal(doc, &u.Object); err != nil {
			t.Fatal(err)
		}
		if u.GroupVersionKind().Group == gatewayv1.GroupName {
			custom = append(custom, &u)
			continue
		}
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v:\n%s", err, doc)
		}
		builtin = append(builtin, o)
	}
	lists := map[schema.GroupVersionResource]string{standard("gateways"): "GatewayList"}
	for resource, kind := range routes {
		lists[standard(resource)] = kind + "List"
	}
	dynamic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
	for _, u := range custom {
		resource := standard(strings.ToLower(u.GetKind()) + "s")
		if err := dynamic.Tracker().Create(resource, u, u.GetNamespace()); err != nil {
			t.Fatal(err)
		}
	}
	return a, kube.New(kube.Config{
		Log: slog.New(slog.DiscardHandler), Client: fake.NewClientset(builtin...),
		Custom: dynamic,
	})
}

// run runs a store until the test ends, and waits for all lists.
func run(t *testing.T, store *kube.Store, s *kube.Subscription) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	go func() { _ = store.Run(ctx) }()
	select {
	case <-s.Synced():
	case <-ctx.Done():
		t.Fatal("the lists are not complete")
	}
}
