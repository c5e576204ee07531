package networkpolicy

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairway-net/fairway/internal/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

// cnp returns a ClusterNetworkPolicy with this spec.
func cnp(t *testing.T, name string, generation int64, spec string) *unstructured.Unstructured {
	t.Helper()
	o := map[string]any{}
	if err := yaml.Unmarshal([]byte(spec), &o); err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": kube.ClusterNetworkPolicies.GroupVersion().String(), "kind": "ClusterNetworkPolicy", "spec": o}}
	u.SetName(name)
	u.SetGeneration(generation)
	return u
}

// withPolicies is an API server of ClusterNetworkPolicies. The client's fake does not support server-side apply for
// them, so a patch replaces the status. test/policy tests the owners of fields with a real server.
func withPolicies(t *testing.T, patches *atomic.Int32, all ...runtime.Object) *dynamicfake.FakeDynamicClient {
	custom := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{kube.ClusterNetworkPolicies: "ClusterNetworkPolicyList"}, all...)
	custom.PrependReactor("patch", kube.ClusterNetworkPolicies.Resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
		patches.Add(1)
		p := a.(clienttesting.PatchAction)
		var o map[string]any
		if err := json.Unmarshal(p.GetPatch(), &o); err != nil {
			return true, nil, err
		}
		was, err := custom.Tracker().Get(kube.ClusterNetworkPolicies, "", p.GetName())
		if err != nil {
			return true, nil, err
		}
		now := was.DeepCopyObject().(*unstructured.Unstructured)
		now.Object["status"] = o["status"]
		return true, now, custom.Tracker().Update(kube.ClusterNetworkPolicies, now, "")
	})
	return custom
}

// conditionsIn returns the conditions of an object, one per line.
func conditionsIn(t *testing.T, custom *dynamicfake.FakeDynamicClient, name string) (text, since string) {
	t.Helper()
	o, err := custom.Resource(kube.ClusterNetworkPolicies).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, one := range all {
		c := one.(map[string]any)
		text += fmt.Sprintf("%v %v %v %v: %v\n", c["type"], c["status"], c["reason"], c["observedGeneration"], c["message"])
		since += fmt.Sprint(c["lastTransitionTime"], " ")
	}
	return text, since
}

// Each policy gets conditions that report unsupported parts. A change of the policy changes the conditions, and an
// unchanged status is not written again.
func TestStatuses(t *testing.T) {
	const subject = "tier: Admin\npriority: 1\nsubject: {namespaces: {}}\n"
	var patches atomic.Int32
	custom := withPolicies(t, &patches,
		cnp(t, "good", 1, subject+"egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]"),
		cnp(t, "names", 3, subject+"egress: [{action: Accept, to: [{domainNames: [example.com]}]}]"),
		cnp(t, "block", 1, subject+"egress: [{action: Deny, to: [{networks: [192.0.2.0/77]}]}]"),
		cnp(t, "tier", 1, "tier: Middle\npriority: 1\nsubject: {namespaces: {}}"))
	s := kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: fake.NewClientset(), Custom: custom})
	p := NewStatuses(slog.New(slog.DiscardHandler), s)
	runUntilEnd(t, s)
	stop := runStoppable(t, p.Run)
	for name, want := range map[string]string{
		"good":  "Accepted True Accepted 1: it is enforced as it is written\n",
		"names": "Accepted True PartiallyAccepted 3: it is enforced except for the parts in PartialFailure\nPartialFailure True FeatureNotSupported 3: egress[0]: domainNames are not supported",
		"block": "Accepted True PartiallyAccepted 1: it is enforced except for the parts in PartialFailure\nPartialFailure True Invalid 1: egress[0]: a peer is not understood: it denies everything\n",
		"tier":  "Accepted False FeatureNotSupported 1: tier \"Middle\" is not known: it selects no pod\n",
	} {
		until(t, "the status of "+name, func() bool { text, _ := conditionsIn(t, custom, name); return strings.HasPrefix(text, want) })
	}

	// An unchanged condition keeps the time of its last transition.
	const since = "2026-01-02T03:04:05Z"
	o := cnp(t, "block", 2, subject+"egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]")
	o.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Accepted", "status": "True", "reason": "PartiallyAccepted",
		"message": "", "observedGeneration": int64(1), "lastTransitionTime": since}}}
	if err := custom.Tracker().Update(kube.ClusterNetworkPolicies, o, ""); err != nil {
		t.Fatal(err)
	}
	until(t, "the mended policy", func() bool {
		text, _ := conditionsIn(t, custom, "block")
		return text == "Accepted True Accepted 2: it is enforced as it is written\n"
	})
	if _, now := conditionsIn(t, custom, "block"); now != since+" " {
		t.Errorf("Accepted was True since %s, and since %s now", since, now)
	}

	stop()
	written := patches.Load()
	s = kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: fake.NewClientset(), Custom: custom})
	p = NewStatuses(slog.New(slog.DiscardHandler), s)
	runUntilEnd(t, s)
	runUntilEnd(t, p)
	if err := custom.Tracker().Add(cnp(t, "last", 1, subject)); err != nil {
		t.Fatal(err)
	}
	until(t, "the last status", func() bool { text, _ := conditionsIn(t, custom, "last"); return text != "" })
	if n := patches.Load() - written; n != 1 {
		t.Errorf("another controller wrote %d statuses, want that of the new policy only", n)
	}
}
