package deploy_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// asks are the places in the agent's code that ask the API server, and with which verbs. The key
// is what stands in the source: the group's client and the resource.
var asks = map[string]struct{ resource, verbs string }{
	"CoreV1().Services":              {"services", "get list watch"},
	"CoreV1().Nodes":                 {"nodes", "list patch watch"},
	"CoreV1().Pods":                  {"pods", "get list watch"}, // get: pod-lookup; watch: network-policy, egress
	"CoreV1().Namespaces":            {"namespaces", "list watch"},
	"NetworkingV1().NetworkPolicies": {"networkpolicies.networking.k8s.io", "list watch"},
	"DiscoveryV1().EndpointSlices":   {"endpointslices.discovery.k8s.io", "list watch"},
	"NetworkingV1().ServiceCIDRs":    {"servicecidrs.networking.k8s.io", "list watch"},
	"EventsV1().Events":              {"events.events.k8s.io", "create"},
}

// others are asked by other programs than the agent, which have roles of their own.
var others = []string{
	"CoordinationV1()",    // kube.Election: of the controllers
	"CoreV1().Namespaces", // loadbalancer.Addresses: of the controller
	"CoreV1().ConfigMaps", // loadbalancer.Speaker: of the speaker
	"CoreV1().Secrets",
	"CoreV1().RESTClient", // kube.Agents.Exec, kube.PodPorts: of a person with fairway path or forward
	"AppsV1()",            // kube.Agents.Parts and kube.Inspect: of a person with fairway status or doctor
}

var asked = regexp.MustCompile(`\b(\w+V\d\w*\(\))(\.\w+)?`)

// TestRoleIsWhatTheAgentAsks holds that the agent's role grants each verb that its code uses and
// no other. Whoever adds a request finds both places here.
func TestRoleIsWhatTheAgentAsks(t *testing.T) {
	found := make(map[string]bool)
	for _, dir := range []string{"../internal/kube/*.go", "../internal/kube/loadbalancer/*.go", "../internal/kube/networkpolicy/*.go", "../internal/command/*/*.go"} {
		files, err := filepath.Glob(dir)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, f := range files {
			if !strings.HasSuffix(f, "_test.go") {
				checkSource(t, f, found)
			}
		}
	}
	want := make(map[string]string)
	for text, a := range asks {
		if !found[text] {
			t.Errorf("no code asks by %s any more: remove it here and from the role", text)
		}
		want[a.resource] = a.verbs
	}
	want["clusternetworkpolicies.policy.networking.k8s.io"] = "list watch" // kube.Policies, by the client for custom resources
	want["nodes/status"] = "patch"                                         // Store.ClearNetworkUnavailable
	have := make(map[string]string)
	for _, role := range agentRoles(t) {
		for _, r := range role.Rules {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					name := strings.TrimSuffix(resource+"."+group, ".")
					verbs := append(strings.Fields(have[name]), r.Verbs...)
					slices.Sort(verbs)
					have[name] = strings.Join(slices.Compact(verbs), " ")
				}
			}
		}
	}
	if !maps.Equal(have, want) {
		t.Errorf("the agent's role grants\n%v\nand its code uses\n%v", have, want)
	}
}

// TestBaseRole holds what each node's token may do without any component: it reads no pods, and changes nothing.
func TestBaseRole(t *testing.T) {
	have := map[string]string{}
	for _, r := range find[*rbacv1.ClusterRole](t, objects(t, "agent/rbac.yaml"), "fairway-agent").Rules {
		have[strings.Join(r.Resources, " ")] += strings.Join(r.Verbs, " ")
	}
	want := map[string]string{
		"services": "get list watch", "nodes": "list watch", "endpointslices": "list watch", "servicecidrs": "list watch", "events": "create",
	}
	if !maps.Equal(have, want) {
		t.Errorf("the base's role grants\n%v\nwant\n%v", have, want)
	}
}

// TestControllerRole holds what the controller may do: what its code asks, and no more.
func TestControllerRole(t *testing.T) {
	all := objects(t, "components/controller/rbac.yaml")
	have := make(map[string]string)
	for _, r := range slices.Concat(find[*rbacv1.ClusterRole](t, all, "fairway-controller").Rules, find[*rbacv1.Role](t, all, "fairway-controller").Rules) {
		have[strings.Join(slices.Concat(r.Resources, r.ResourceNames), " ")] = strings.Join(r.Verbs, " ")
	}
	want := map[string]string{
		"services": "get list watch", "pods": "list watch", "endpointslices": "list watch patch", "events": "create",
		"leases": "create", "leases fairway-controller": "get update",
	}
	if !maps.Equal(have, want) {
		t.Errorf("the controller's roles grant\n%v\nwant\n%v", have, want)
	}
	pod := find[*appsv1.Deployment](t, objects(t, "components/controller/deployment.yaml"), "fairway-controller").Spec.Template
	checkContainer(t, nil, pod.Spec, pod.Spec.Containers[0])
	if c := pod.Spec.Containers[0].SecurityContext; pod.Spec.HostNetwork || !*pod.Spec.SecurityContext.RunAsNonRoot || *c.AllowPrivilegeEscalation || len(c.Capabilities.Add) > 0 {
		t.Error("the controller has more privileges than it needs")
	}
}

// TestControllerComponents holds what components let the controller do besides, and an edge.
func TestControllerComponents(t *testing.T) {
	for component, want := range map[string]map[string]string{
		"pools": {
			"services nodes namespaces": "list watch", "services/status": "patch", "endpointslices": "list watch", "servicecidrs": "list watch",
			"ipaddresspools": "list watch", "configurationstates": "list watch create patch", "ipaddresspools/status configurationstates/status": "patch",
		},
		"components/edge":      {"services nodes": "list watch", "endpointslices": "list watch", "leases": "create", "leases fairway-edge-vote": "get update"},
		"components/servicelb": {"services nodes": "list watch", "services/status": "patch", "endpointslices": "list watch", "servicecidrs": "list watch"},
		"components/gateway/controller-rbac.yaml": {
			"services": "create patch delete", "endpointslices": "create patch delete", "configmaps fairway-gateway-ports": "update", "gatewayclasses": "create",
			"gatewayclasses/status gateways/status listenersets/status httproutes/status grpcroutes/status tlsroutes/status tcproutes/status udproutes/status backendtlspolicies/status": "patch",
			"ingresses/status": "patch", "routepolicies/status": "patch",
		},
		"components/network-policy/controller-rbac.yaml": {"clusternetworkpolicies": "list watch", "clusternetworkpolicies/status": "patch"},
	} {
		have := make(map[string]string)
		if !strings.HasSuffix(component, ".yaml") {
			component += "/rbac.yaml"
		}
		for _, o := range objects(t, component) {
			var rules []rbacv1.PolicyRule
			switch o := o.(type) {
			case *rbacv1.ClusterRole:
				rules = o.Rules
			case *rbacv1.Role:
				rules = o.Rules
			}
			for _, r := range rules {
				have[strings.Join(slices.Concat(r.Resources, r.ResourceNames), " ")] = strings.Join(r.Verbs, " ")
			}
		}
		if !maps.Equal(have, want) {
			t.Errorf("%s: the roles grant\n%v\nwant\n%v", component, have, want)
		}
	}
}

// TestNamesRole: who writes names outside of the cluster changes nothing inside, and reads no Secret by the API server.
func TestNamesRole(t *testing.T) {
	all := objects(t, "components/names/rbac.yaml")
	have := make(map[string]string)
	for _, r := range slices.Concat(find[*rbacv1.ClusterRole](t, all, "fairway-names").Rules, find[*rbacv1.Role](t, all, "fairway-names").Rules) {
		have[strings.Join(slices.Concat(r.Resources, r.ResourceNames), " ")] = strings.Join(r.Verbs, " ")
	}
	want := map[string]string{
		"services nodes": "list watch", "endpointslices": "list watch", "ingresses servicecidrs": "list watch",
		"gateways httproutes grpcroutes tlsroutes": "list watch", "events": "create", "leases": "create", "leases fairway-names": "get update",
	}
	if !maps.Equal(have, want) {
		t.Errorf("the roles grant\n%v\nwant\n%v", have, want)
	}
	pod := find[*appsv1.Deployment](t, objects(t, "components/names/deployment.yaml"), "fairway-names").Spec.Template
	checkContainer(t, nil, pod.Spec, pod.Spec.Containers[0])
	if c := pod.Spec.Containers[0].SecurityContext; pod.Spec.HostNetwork || !*pod.Spec.SecurityContext.RunAsNonRoot || *c.AllowPrivilegeEscalation || len(c.Capabilities.Add) > 0 {
		t.Error("the pod has more privileges than it needs")
	}
}

// TestSpeakerRole holds what the speaker may do: it changes nothing but what speakers share, in
// one namespace.
func TestSpeakerRole(t *testing.T) {
	all := objects(t, "components/load-balancer/speaker-rbac.yaml")
	have := make(map[string]string)
	for _, r := range slices.Concat(find[*rbacv1.ClusterRole](t, all, "fairway-speaker").Rules, find[*rbacv1.Role](t, all, "fairway-speaker").Rules) {
		have[strings.Join(slices.Concat(r.Resources, r.ResourceNames), " ")] = strings.Join(r.Verbs, " ")
	}
	want := map[string]string{
		"services": "get list watch", "nodes": "list watch", "endpointslices": "list watch", "servicecidrs": "list watch", "events": "create",
		"ipaddresspools l2advertisements bgpadvertisements bgppeers bfdprofiles communities": "list watch",
		"configurationstates": "list watch create patch delete", "configurationstates/status": "patch",
		"configmaps secrets": "create", "configmaps fairway-speaker-voters": "list watch update", "secrets": "get list watch",
		"leases": "create", "leases fairway-speaker-vote": "get update",
		"servicel2statuses servicebgpstatuses": "list watch create patch delete", "servicel2statuses/status servicebgpstatuses/status": "patch",
	}
	if !maps.Equal(have, want) {
		t.Errorf("the speaker's roles grant\n%v\nwant\n%v", have, want)
	}
	pod := find[*appsv1.DaemonSet](t, objects(t, "components/load-balancer/speaker.yaml"), "fairway-speaker").Spec.Template
	if c := pod.Spec.Containers[0].SecurityContext; *c.Privileged || *c.AllowPrivilegeEscalation || len(c.Capabilities.Add) != 2 ||
		len(pod.Spec.Volumes) != 1 || pod.Spec.Volumes[0].HostPath.Path != "/run/fairway/bgp" {
		t.Error("the speaker has more privileges than it needs")
	}
}

// checkSource finds what a file asks, and complains about what is in no table.
func checkSource(t *testing.T, path string, found map[string]bool) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range asked.FindAllStringSubmatch(string(text), -1) {
		if _, ok := asks[m[0]]; ok {
			found[m[0]] = true
		} else if !slices.Contains(others, m[1]) && !slices.Contains(others, m[0]) {
			t.Errorf("%s asks the API server by %s: write into this test what for, and grant it in deploy/", path, m[0])
		}
	}
}

// agentRoles are the roles of the agent's service account, in the base and in components.
func agentRoles(t *testing.T) (roles []*rbacv1.ClusterRole) {
	t.Helper()
	files, err := filepath.Glob("*/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("components/*/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, more...) {
		all := objects(t, f)
		for _, o := range all {
			b, ok := o.(*rbacv1.ClusterRoleBinding)
			if ok && slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return s.Name == "fairway-agent" }) {
				roles = append(roles, find[*rbacv1.ClusterRole](t, all, b.RoleRef.Name))
			}
		}
	}
	return roles
}
