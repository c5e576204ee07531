package policy

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config" // has the flag --kubeconfig

	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	timeouts "sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

// cluster returns clients of the cluster of --kubeconfig.
func cluster(t *testing.T) (*rest.Config, client.Client) {
	t.Helper()
	if f := flag.Lookup("kubeconfig"); f == nil || f.Value.String() == "" {
		t.Fatal("--kubeconfig names no cluster [run make test-policy]")
	}
	cfg, err := config.GetConfig()
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS, cfg.Burst = 100, 200 // what the API server itself limits is enough
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := v1alpha2.Install(c.Scheme()); err != nil {
		t.Fatal(err)
	}
	return cfg, c
}

// TestConformance runs upstream's tests with all features.
func TestConformance(t *testing.T) {
	cfg, c := cluster(t)
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	// Most of the time is waiting for what is denied, twice each.
	limits := timeouts.TimeoutConfig{RequestTimeout: time.Second, PokeInterval: 100 * time.Millisecond}
	s := suite.New(suite.Options{Client: c, ClientSet: clients, KubeConfig: *cfg, CleanupBaseResources: true, EnableAllSupportedFeatures: true, TimeoutConfig: limits})
	s.Setup(t)
	if s.Run(t, tests.ConformanceTests); len(tests.ConformanceTests) < 24 {
		t.Errorf("upstream has %d tests, and had 24", len(tests.ConformanceTests))
	}
}

// TestStatus: the controller writes conditions into the statuses of policies, with the rights that it has, and leaves
// those of others alone.
func TestStatus(t *testing.T) {
	_, c := cluster(t)
	deny := v1alpha2.ClusterNetworkPolicyEgressRule{Action: v1alpha2.ClusterNetworkPolicyRuleActionDeny,
		To: []v1alpha2.ClusterNetworkPolicyEgressPeer{{Networks: []v1alpha2.CIDR{"192.0.2.0/24"}}}}
	names := v1alpha2.ClusterNetworkPolicyEgressRule{Action: v1alpha2.ClusterNetworkPolicyRuleActionAccept,
		To: []v1alpha2.ClusterNetworkPolicyEgressPeer{{DomainNames: []v1alpha2.DomainName{"example.com"}}}}
	near := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	nobody := metav1.LabelSelector{MatchLabels: map[string]string{"no-namespace": "has-this"}}
	for name, one := range map[string]struct {
		subject metav1.LabelSelector
		rule    v1alpha2.ClusterNetworkPolicyEgressRule
		want    []string
	}{
		"good":    {nobody, deny, []string{"Accepted True Accepted", "Theirs True Theirs"}},
		"names":   {nobody, names, []string{"Accepted True PartiallyAccepted", "PartialFailure True FeatureNotSupported", "Theirs True Theirs"}},
		"subject": {near, deny, []string{"Accepted False Invalid", "Theirs True Theirs"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "status-" + name}, Spec: v1alpha2.ClusterNetworkPolicySpec{
				Tier: v1alpha2.AdminTier, Priority: 1000, Subject: v1alpha2.ClusterNetworkPolicySubject{Namespaces: &one.subject},
				Egress: []v1alpha2.ClusterNetworkPolicyEgressRule{one.rule}}}
			if err := c.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := c.Delete(context.WithoutCancel(t.Context()), o); err != nil {
					t.Error(err)
				}
			}()
			theirs := []byte(`{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "status": {"conditions": [{"type": "Theirs",
				"status": "True", "reason": "Theirs", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}`)
			if err := c.Status().Patch(t.Context(), o.DeepCopy(), client.RawPatch(types.ApplyPatchType, theirs), client.FieldOwner("others")); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, one := range o.Status.Conditions {
					got = append(got, fmt.Sprintf("%s %s %s", one.Type, one.Status, one.Reason))
				}
				slices.Sort(got)
				if slices.Equal(got, one.want) {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("the conditions are %q, want %q", got, one.want)
				}
			}
		})
	}
}
