package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// partsOf serves the answers by path, and reads Parts from them.
func partsOf(t *testing.T, answers map[string]string) *Parts {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		text, ok := answers[r.URL.Path]
		switch {
		case text == "forbidden":
			w.WriteHeader(http.StatusForbidden)
			text = fmt.Sprintf(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "details": {"kind": %q}}`, r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			text = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	agents, err := ConnectAgents(Connection{Master: server.URL, ContentType: "application/json"}, "kube-system")
	if err != nil {
		t.Fatal(err)
	}
	return agents.Parts(t.Context())
}

// TestParts: what the API server and the DNS pods say, and which facts a user may not read.
func TestParts(t *testing.T) {
	const apps, core = "/apis/apps/v1/namespaces/kube-system/", "/api/v1/namespaces/kube-system/"
	renewed := time.Now().Add(-3 * time.Second).UTC().Truncate(time.Second)
	pod := func(name, command string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q, "namespace": "kube-system"}, "spec": {"containers": [{"name": "dns", "command": [%q]}]}, "status": {"phase": "Running"}}`, name, command)
	}
	answers := map[string]string{
		apps + "deployments":       `{"kind": "DeploymentList", "apiVersion": "apps/v1", "items": [{"metadata": {"name": "fairway-dns"}, "spec": {"replicas": 2, "template": {"spec": {"containers": [{"command": ["fairway", "dns"]}]}}}, "status": {"availableReplicas": 1}}]}`,
		"/apis/apps/v1/daemonsets": `{"kind": "DaemonSetList", "apiVersion": "apps/v1", "items": [{"metadata": {"name": "fairway-speaker", "namespace": "kube-system"}, "status": {"desiredNumberScheduled": 3, "numberAvailable": 3}}, {"metadata": {"name": "calico-node", "namespace": "calico-system"}}]}`,
		core + "services":          `{"kind": "ServiceList", "apiVersion": "v1", "items": [{"metadata": {"name": "kube-dns"}}]}`,
		"/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices": `{"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "items": [{"addressType": "IPv4", "endpoints": [{"addresses": ["10.244.0.2"], "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "name": "a"}}, {"addresses": ["10.244.0.3"], "conditions": {"ready": false}}]},
			{"addressType": "IPv6", "endpoints": [{"addresses": ["fd00::2"], "targetRef": {"kind": "Pod", "name": "a"}}]}]}`,
		core + "pods":                           `{"kind": "PodList", "apiVersion": "v1", "items": [` + pod("a", "fairway") + "," + pod("b", "fairway") + "," + pod("c", "fairway") + "," + pod("coredns", "/coredns") + `]}`,
		core + "pods/http:a:9153/proxy/metrics": "# TYPE fairway_dns_corefile_stale gauge\nfairway_dns_corefile_stale 1\n",
		core + "pods/http:b:9153/proxy/metrics": "fairway_dns_corefile_stale 0\n",
		"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/fairway-controller": `{"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "fairway-controller"}, "spec": {"holderIdentity": "x", "renewTime": "` + renewed.Format("2006-01-02T15:04:05.000000Z07:00") + `"}}`,
		core + "configmaps/fairway-agent":                                               `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "fairway-agent"}, "data": {"NETWORK_POLICY": "false"}}`,
		"/apis/networking.k8s.io/v1/networkpolicies":                                    `{"kind": "NetworkPolicyList", "apiVersion": "networking.k8s.io/v1", "metadata": {"continue": "x", "remainingItemCount": 41}, "items": [{}]}`,
		"/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies":                `{"kind": "ClusterNetworkPolicyList", "apiVersion": "policy.networking.k8s.io/v1alpha2", "items": [{"kind": "ClusterNetworkPolicy", "apiVersion": "policy.networking.k8s.io/v1alpha2", "metadata": {"name": "x"}}]}`,
	}
	p := partsOf(t, answers)
	dns, speaker := p.Deployments["fairway-dns"], p.DaemonSets["fairway-speaker"]
	if len(p.Unread) > 0 || dns == nil || dns.Wanted != 2 || dns.Available != 1 || !dns.Fairway() || speaker == nil || speaker.Wanted != 3 || p.DaemonSets["calico-node"] != nil || !slices.Contains(p.Plugins, "calico-node") {
		t.Errorf("%+v, %+v, %+v", p, dns, speaker)
	}
	if p.DNSService != "kube-system/kube-dns" || p.DNSReady != 1 || !slices.Equal(p.StaleDNS, []string{"a"}) || !slices.Equal(p.UnaskedDNS, []string{"c"}) {
		t.Errorf("DNS: %+v", p)
	}
	if p.Leader != "x" || !p.LeaderSeen.Equal(renewed) || p.EdgeVoter != "" || p.Settings["NETWORK_POLICY"] != "false" || p.Policies != 43 {
		t.Errorf("%+v", p)
	}
	answers["/apis/networking.k8s.io/v1/networkpolicies"], answers[apps+"deployments"] = "forbidden", "forbidden"
	p = partsOf(t, answers)
	if len(p.Unread) != 2 || p.Unread[FactPolicies] != "your user may not read networkpolicies" || p.Unread[FactWorkloads] != "your user may not read deployments" {
		t.Errorf("without rights: %v", p.Unread)
	}
}
