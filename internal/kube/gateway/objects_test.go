package gateway

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
)

const deadline = 20 * time.Second

// kept is a compiler that keeps objects.
type kept map[gateway.Ref]gateway.Object

func (k kept) Set(o gateway.Object)   { k[o.Ref()] = o }
func (k kept) Delete(ref gateway.Ref) { delete(k, ref) }

func (k kept) refs() string {
	var all []string
	for ref := range k {
		all = append(all, string(ref.Kind)+" "+strings.TrimPrefix(ref.Name.String(), "/"))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func newCustom(t *testing.T, objects ...*unstructured.Unstructured) *dynamicfake.FakeDynamicClient {
	t.Helper()
	lists := map[schema.GroupVersionResource]string{}
	for _, k := range customKinds {
		lists[k.resource] = string(k.kind) + "List"
	}
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
	for _, o := range objects { // the fake client's own way guesses a wrong plural of Gateway
		for _, k := range customKinds {
			if string(k.kind) == o.GetKind() {
				if _, err := client.Resource(k.resource).Namespace(o.GetNamespace()).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return client
}

func custom(kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	k, _ := customKindOf(gateway.Kind(kind))
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": k.resource.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"name": name, "namespace": namespace, "uid": "uid-of-" + name}, "spec": spec,
	}}
}

func newStore(client *fake.Clientset, custom dynamic.Interface) *kube.Store {
	return kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "node-1", Custom: custom})
}

// runAll runs programs until the test ends.
func runAll(t *testing.T, all ...interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, r := range all {
		wg.Go(func() {
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// until updates the compiler after each change, until the compiler has the wanted objects.
func until(t *testing.T, o *Objects, c kept, want string) {
	t.Helper()
	end := time.After(deadline)
	for {
		o.Update(c)
		if c.refs() == want {
			return
		}
		select {
		case <-o.Dirty():
		case <-end:
			t.Fatalf("the objects are %s, want %s", c.refs(), want)
		}
	}
}

// TestObjects: objects of all kinds arrive and go. A Gateway has its bind ports.
func TestObjects(t *testing.T) {
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}},
		&networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "old"}},
		&networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "fairway"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: bindsName}, Data: map[string]string{"uid-of-g": "20005=TCP/80 nonsense 20006=UDP/53"}},
	)
	api1 := newCustom(t, custom("Gateway", "shop", "g", nil), custom("HTTPRoute", "shop", "r", nil), custom("GatewayClass", "", "fairway", nil))
	s := newStore(client, api1)
	o := Subscribe(s, "test", Config{Namespace: "kube-system"})
	runAll(t, s, o)
	c := kept{}
	const all = "Gateway shop/g, GatewayClass fairway, HTTPRoute shop/r, Ingress shop/old, IngressClass fairway, Namespace shop, Service shop/web"
	until(t, o, c, all)
	g := c[gateway.Ref{Kind: gateway.KindGateway, Name: api.Name{Namespace: "shop", Name: "g"}}].(*gateway.Gateway)
	if len(g.Bind) != 2 || g.Bind[gateway.BindKey{Proto: api.TCP, Port: 80}] != 20005 || g.Bind[gateway.BindKey{Proto: api.UDP, Port: 53}] != 20006 {
		t.Errorf("the Gateway's bind ports are %v", g.Bind)
	}
	routes := api1.Resource(schema.GroupVersionResource{Group: gateway.Group, Version: "v1", Resource: "httproutes"}).Namespace("shop")
	if err := routes.Delete(t.Context(), "r", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, o, c, strings.Replace(all, "HTTPRoute shop/r, ", "", 1))
}

// TestWithoutGatewayAPI: without the CustomResourceDefinitions, Ingresses are served.
func TestWithoutGatewayAPI(t *testing.T) {
	client := fake.NewClientset(&networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "old"}})
	absent := newCustom(t)
	absent.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(a.GetResource().GroupResource(), "")
	})
	absent.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		return true, nil, apierrors.NewNotFound(a.GetResource().GroupResource(), "")
	})
	s := newStore(client, absent)
	o := Subscribe(s, "test", Config{Namespace: "kube-system"})
	runAll(t, s, o)
	until(t, o, kept{}, "Ingress shop/old")
}

// TestFetch: Secrets and ConfigMaps are read by name when they are wanted, and no other is. Nothing is listed.
func TestFetch(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cert"}, Data: map[string][]byte{"tls.crt": []byte("a")}}
	client := fake.NewClientset(secret, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ca"}})
	s := newStore(client, newCustom(t))
	o := Subscribe(s, "test", Config{Namespace: "kube-system"})
	clock := time.Now()
	var mu sync.Mutex
	o.fetch.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return clock }
	runAll(t, s, o)
	c := kept{}
	needs := gateway.Needs{
		Secrets:    []api.Name{{Namespace: "shop", Name: "cert"}, {Namespace: "shop", Name: "absent"}},
		ConfigMaps: []api.Name{{Namespace: "shop", Name: "ca"}},
	}
	if o.Fetch(needs) {
		t.Error("settled before anything was read")
	}
	until(t, o, c, "ConfigMap shop/ca, Secret shop/cert")
	for end := time.Now().Add(deadline); !o.Fetch(needs); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never settled")
		}
	}
	secret = secret.DeepCopy()
	secret.Data["tls.crt"] = []byte("b")
	if _, err := client.CoreV1().Secrets("shop").Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	clock = clock.Add(fetchAge)
	mu.Unlock()
	ref := gateway.Ref{Kind: gateway.KindSecret, Name: api.Name{Namespace: "shop", Name: "cert"}}
	for end := time.Now().Add(deadline); string(c[ref].(*gateway.Secret).Data["tls.crt"]) != "b"; time.Sleep(10 * time.Millisecond) {
		if o.Update(c); time.Now().After(end) {
			t.Fatal("a changed Secret was not read again")
		}
	}
	if o.Fetch(gateway.Needs{}); o.fetch.get(ref) != nil {
		t.Error("a Secret that nobody wants is kept")
	}
	for _, a := range client.Actions() {
		if r := a.GetResource().Resource; r == "secrets" && a.GetVerb() != "get" && a.GetVerb() != "update" {
			t.Errorf("%s of Secrets", a.GetVerb())
		}
		if g, ok := a.(clienttesting.GetAction); ok && g.GetName() == "other" {
			t.Error("a Secret was read that no object names")
		}
	}
}

// TestFetchSoon: an object that was absent, or has just changed, is read again after a second, and an object that stays the
// same only after a minute.
func TestFetchSoon(t *testing.T) {
	name := api.Name{Namespace: "pki", Name: "ca"}
	ref := gateway.Ref{Kind: gateway.KindConfigMap, Name: name}
	news, clock := 0, time.Now()
	f := newFetcher(slog.New(slog.DiscardHandler), nil, func(gateway.Ref) { news++ })
	f.now = func() time.Time { return clock }
	f.want(gateway.Needs{ConfigMaps: []api.Name{name}})
	step := func(text string) (after time.Duration) { // reads the object when it is due
		for begin := clock; ; clock = clock.Add(fetchTick) {
			f.refresh()
			if _, due := f.next(); !due {
				continue
			}
			var object gateway.Object
			if text != "" {
				object = &gateway.ConfigMap{Meta: gateway.Meta{Name: name}, Data: map[string]string{"ca.crt": text}}
			}
			f.store(ref, object, nil)
			return clock.Sub(begin)
		}
	}
	for i, one := range []struct {
		text  string
		after time.Duration
		news  int
	}{{"", 0, 1}, {"a", time.Second, 2}, {"b", time.Second, 3}, {"b", time.Second, 3}, {"b", 2 * time.Second, 3}, {"b", 4 * time.Second, 3}, {"b", 8 * time.Second, 3},
		{"b", 16 * time.Second, 3}, {"b", 32 * time.Second, 3}, {"b", time.Minute, 3}, {"b", time.Minute, 3}, {"c", time.Minute, 4}, {"c", time.Second, 4}} {
		if after := step(one.text); after != one.after || news != one.news {
			t.Errorf("read %d: after %v, %d changes; want %v, %d", i, after, news, one.after, one.news)
		}
	}
}
