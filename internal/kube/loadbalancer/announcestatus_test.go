package loadbalancer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// metallbAPI is an API server with objects of metallb.io that imitates server-side apply. While fail is positive,
// writes fail.
type metallbAPI struct {
	*dynamicfake.FakeDynamicClient
	fail atomic.Int32
}

func newMetallbAPI(objects ...runtime.Object) *metallbAPI {
	lists := map[schema.GroupVersionResource]string{}
	for resource, kind := range map[string]string{
		"ipaddresspools": "IPAddressPool", "l2advertisements": "L2Advertisement", "bgpadvertisements": "BGPAdvertisement", "bgppeers": "BGPPeer",
		"bfdprofiles": "BFDProfile", "communities": "Community", "configurationstates": "ConfigurationState",
		"servicel2statuses": "ServiceL2Status", "servicebgpstatuses": "ServiceBGPStatus",
	} {
		version := "v1beta1"
		if kind == "BGPPeer" {
			version = "v1beta2"
		}
		lists[schema.GroupVersionResource{Group: metallbGroup, Version: version, Resource: resource}] = kind + "List"
	}
	server := &metallbAPI{FakeDynamicClient: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)}
	server.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if server.fail.Add(-1) >= 0 {
			return true, nil, errors.New("not now")
		}
		return true, &unstructured.Unstructured{}, server.put(a.(clienttesting.PatchAction))
	})
	server.PrependReactor("delete", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		if server.fail.Add(-1) >= 0 {
			return true, nil, errors.New("not now")
		}
		return false, nil, nil
	})
	return server
}

// put applies a patch.
func (server *metallbAPI) put(p clienttesting.PatchAction) error {
	want := &unstructured.Unstructured{}
	if err := json.Unmarshal(p.GetPatch(), want); err != nil {
		return err
	}
	was, err := server.Tracker().Get(p.GetResource(), p.GetNamespace(), p.GetName())
	if err != nil {
		return server.Tracker().Create(p.GetResource(), want, p.GetNamespace())
	}
	now := was.DeepCopyObject().(*unstructured.Unstructured)
	if status, ok := want.Object["status"].(map[string]any); ok { // replaces the status of one owner, and other fields stay
		all, _, _ := unstructured.NestedMap(now.Object, "status")
		if all == nil {
			all = map[string]any{}
		}
		maps.Copy(all, status)
		now.Object["status"] = all
	} else {
		maps.Copy(now.Object, want.Object)
	}
	return server.Tracker().Update(p.GetResource(), now, p.GetNamespace())
}

// said returns the objects of a kind, one per line.
func (server *metallbAPI) said(t *testing.T, k announceKind) string {
	t.Helper()
	list, err := k.client(server, "metallb-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range list.Items {
		s := k.read(&list.Items[i])
		all = append(all, fmt.Sprintf("%s announces %v by %v, of %d owners", s.node, s.Name, s.by, len(list.Items[i].GetOwnerReferences())))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

func (server *metallbAPI) until(t *testing.T, k announceKind, want string) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); server.said(t, k) != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s; want %s", server.said(t, k), want)
		}
	}
}

// leftStatus is an object that MetalLB or an earlier speaker has left.
func leftStatus(k announceKind, object, node string, of api.Name) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metallb.io/v1beta1", "kind": k.kind,
		"metadata": map[string]any{"name": object, "namespace": "metallb-system",
			"labels": map[string]any{labelAnnouncer: node, labelServiceName: of.Name, labelServiceNamespace: of.Namespace}},
		"status": map[string]any{"node": node, "serviceName": of.Name, "serviceNamespace": of.Namespace},
	}}
}

func metallbStore(server *metallbAPI) *kube.Store {
	return kube.New(kube.Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "node-1", Custom: server, LoadBalancerNamespace: "metallb-system",
		Client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "1234"}}),
	})
}

// TestAnnounceStatuses: each Service that the node announces has an object. This holds after failures, with objects of
// an earlier speaker, and after changes by other programs. When the speaker has ended, no object is left.
func TestAnnounceStatuses(t *testing.T) {
	web, shop := api.Name{Namespace: "shop", Name: "web"}, api.Name{Namespace: "shop", Name: "api"}
	for _, k := range []announceKind{l2Statuses, bgpStatuses} {
		t.Run(k.kind, func(t *testing.T) {
			t.Parallel()
			server := newMetallbAPI(leftStatus(k, k.prefix+"-abcde", "node-1", shop), leftStatus(k, k.prefix+"-fghij", "node-2", web))
			server.fail.Store(2)
			s := metallbStore(server)
			v := SubscribeSpeaker(s, "")
			var informed atomic.Int32
			w := v.statuses(k, slog.New(slog.DiscardHandler), func(api.Name, string, string) { informed.Add(1) })
			runUntilEnd(t, s)
			waitFor(t, v.Synced(), "Synced")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()

			const other = "node-2 announces shop/web by [], of 0 owners"
			w.Set(map[api.Name]AnnouncedService{web: {By: []string{"one"}}})
			server.until(t, k, "node-1 announces shop/web by [one], of 1 owners; "+other)
			w.Set(map[api.Name]AnnouncedService{web: {By: []string{"one", "two"}}, shop: {By: []string{"one"}}})
			const both = "node-1 announces shop/api by [one], of 1 owners; node-1 announces shop/web by [one two], of 1 owners; " + other
			server.until(t, k, both)
			if err := w.remove(ctx, w.nameOf(web)); err != nil { // as an administrator could
				t.Fatal(err)
			}
			server.until(t, k, both)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			server.until(t, k, other)
			if n := informed.Load(); n != 2 {
				t.Errorf("%d events, want one for each Service", n)
			}
		})
	}
}

// TestBGPStatusesAreBounded: all nodes together stay below the limit of objects, and all leave out the same Services.
func TestBGPStatusesAreBounded(t *testing.T) {
	server := newMetallbAPI()
	s := metallbStore(server)
	v := SubscribeSpeaker(s, "")
	few := bgpStatuses
	few.limit = 2
	w := v.statuses(few, slog.New(slog.DiscardHandler), func(api.Name, string, string) {})
	runUntilEnd(t, s)
	waitFor(t, v.Synced(), "Synced")
	all := map[api.Name]AnnouncedService{}
	for i := range 5 {
		all[api.Name{Namespace: "shop", Name: fmt.Sprint(i)}] = AnnouncedService{By: []string{"tor"}}
	}
	if n := len(w.bounded(slices.Collect(maps.Keys(all)))); n != 2 || w.unwritten != 3 {
		t.Errorf("%d objects are wanted, %d are left out", n, w.unwritten)
	}
	runUntilEnd(t, w)
	w.Set(all)
	server.until(t, few, "node-1 announces shop/0 by [tor], of 1 owners; node-1 announces shop/1 by [tor], of 1 owners")
}

// TestGoneStatuses: the first live node removes the objects of a dead node, and keeps the objects of live nodes. If the
// node is declared dead again, its new objects are removed too.
func TestGoneStatuses(t *testing.T) {
	web := api.Name{Namespace: "shop", Name: "web"}
	server := newMetallbAPI(leftStatus(l2Statuses, "l2-a", "node-2", web), leftStatus(bgpStatuses, "bgp-a", "node-2", web), leftStatus(l2Statuses, "l2-b", "node-3", web))
	s := metallbStore(server)
	v := SubscribeSpeaker(s, "")
	g := v.GoneStatuses(slog.New(slog.DiscardHandler))
	g.after = time.Millisecond
	runUntilEnd(t, s)
	waitFor(t, v.Synced(), "Synced")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	defer func() { cancel(); <-done }()
	how := metav1.ApplyOptions{FieldManager: standingOwner, Force: true}
	for _, node := range []string{"node-2", "node-3"} {
		if err := applyStandings(ctx, s, stateOfSpeaker(s, node), []announce.Standing{{Node: node, Up: true}}, how); err != nil {
			t.Fatal(err)
		}
	}
	server.fail.Store(1)
	g.Set([]string{"node-2"})
	server.until(t, bgpStatuses, "")
	server.untilStandings(t, "node-2", "")
	if server.standingsSaid(t, "node-3") == "" {
		t.Error("how the speaker of a node that lives stands was removed")
	}
	const rest = "node-3 announces shop/web by [], of 0 owners"
	server.until(t, l2Statuses, rest)
	g.Set(nil)
	if err := server.Tracker().Add(leftStatus(l2Statuses, "l2-a", "node-2", web)); err != nil {
		t.Fatal(err)
	}
	g.Set([]string{"node-2"})
	server.until(t, l2Statuses, rest)
	g.Set([]string{"node-1"})
	if due, _ := g.due(); len(due) > 0 {
		t.Error("a node that is dead removes what others said")
	}
}
