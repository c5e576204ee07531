package networkpolicy

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/networkpolicy"
)

func clusterPolicyOf(t *testing.T, spec string) *networkpolicy.ClusterPolicy {
	t.Helper()
	o := map[string]any{}
	if err := yaml.Unmarshal([]byte("metadata: {name: it, uid: the-uid}\nspec:\n  tier: Admin\n  priority: 7\n  subject: {namespaces: {}}\n"+spec), &o); err != nil {
		t.Fatal(err)
	}
	return ConvertClusterPolicy(&unstructured.Unstructured{Object: o})
}

// An unsupported part never allows more: a rule with Accept accepts less, and other rules deny.
func TestClusterPolicyFailsClosed(t *testing.T) {
	for name, c := range map[string]struct {
		rule           string
		action         networkpolicy.Action
		anyone, noPeer bool
		ports          int
		problem        string
	}{
		"accept":                      {"action: Accept, to: [{namespaces: {}}]", networkpolicy.Accept, false, false, 0, ""},
		"accept, unknown peer":        {"action: Accept, to: [{namespaces: {}}, {galaxies: {}}]", networkpolicy.Accept, false, true, 0, "accepts nothing"},
		"deny, unknown peer":          {"action: Deny, to: [{namespaces: {}}, {galaxies: {}}]", networkpolicy.Deny, true, false, 0, "denies everything"},
		"pass, unknown peer":          {"action: Pass, to: [{galaxies: {}}]", networkpolicy.Deny, true, false, 0, "denies everything"},
		"accept, names of domains":    {"action: Accept, to: [{domainNames: [kubernetes.io]}]", networkpolicy.Accept, false, true, 0, "domainNames are not supported"},
		"deny, names of domains":      {"action: Deny, to: [{namespaces: {}}, {domainNames: [kubernetes.io]}]", networkpolicy.Deny, true, false, 0, "denies everything"},
		"accept, unknown protocol":    {"action: Accept, to: [{namespaces: {}}], protocols: [{quic: {}}]", networkpolicy.Accept, false, false, 0, "accepts nothing"},
		"pass, unknown protocol":      {"action: Pass, to: [{namespaces: {}}], protocols: [{quic: {}}, {tcp: {destinationPort: {number: 80}}}]", networkpolicy.Deny, false, false, 0, "denies on all ports"},
		"deny, a selector of nothing": {"action: Deny, to: [{namespaces: {matchExpressions: [{key: a, operator: Near}]}}]", networkpolicy.Deny, true, false, 0, "denies everything"},
		"deny, a false network":       {"action: Deny, to: [{networks: [10.0.0.0/40]}]", networkpolicy.Deny, true, false, 0, "denies everything"},
		"unknown action":              {"action: Log, to: [{namespaces: {}}]", networkpolicy.Deny, false, false, 0, "it denies"},
		"a range":                     {"action: Accept, to: [{namespaces: {}}], protocols: [{udp: {destinationPort: {range: {start: 5, end: 9}}}}]", networkpolicy.Accept, false, false, 1, ""},
		"all ports":                   {"action: Accept, to: [{namespaces: {}}], protocols: [{sctp: {}}]", networkpolicy.Accept, false, false, 1, ""},
		"a named port":                {"action: Accept, to: [{namespaces: {}}], protocols: [{destinationNamedPort: web}]", networkpolicy.Accept, false, false, 3, ""},
	} {
		p := clusterPolicyOf(t, "  egress: [{"+c.rule+"}]")
		if len(p.Rules[networkpolicy.Egress]) != 1 || p.Priority != 7 || p.Tier != networkpolicy.Admin || p.UID != "the-uid" || p.Subject.Namespaces == nil {
			t.Fatalf("%s: %+v", name, p)
		}
		r := p.Rules[networkpolicy.Egress][0]
		anyone := len(r.Peers) == 0 && !r.NoPeer
		if r.Action != c.action || anyone != c.anyone || r.NoPeer != c.noPeer || len(r.Ports) != c.ports {
			t.Errorf("%s: %+v", name, r)
		}
		if problems := strings.Join(p.Problems, "; "); (problems == "") != (c.problem == "") || !strings.Contains(problems, c.problem) {
			t.Errorf("%s: problems %q, want %q", name, problems, c.problem)
		}
	}
}

// A policy with an unsupported pod selector selects no pods, and reports it.
func TestClusterPolicyWithoutSubject(t *testing.T) {
	for _, spec := range []string{"  subject: {galaxies: {}}", "  tier: Middle", "  priority: [high]", "  subject: {pods: {namespaceSelector: {matchExpressions: [{key: a, operator: Near}]}, podSelector: {}}}"} {
		o := map[string]any{}
		text := "metadata: {name: it}\nspec:\n  tier: Admin\n  priority: 7\n  subject: {namespaces: {}}\n"
		key, _, _ := strings.Cut(strings.TrimSpace(spec), ":")
		lines := strings.Split(text, "\n")
		for i, l := range lines {
			if strings.HasPrefix(strings.TrimSpace(l), key+":") {
				lines[i] = spec
			}
		}
		if err := yaml.Unmarshal([]byte(strings.Join(lines, "\n")), &o); err != nil {
			t.Fatal(err)
		}
		p := ConvertClusterPolicy(&unstructured.Unstructured{Object: o})
		if p.Subject.Namespaces != nil || len(p.Problems) != 1 {
			t.Errorf("%s: %+v", spec, p)
		}
	}
}
