package networkpolicy

import (
	"encoding/json"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/policytest"
)

// policyObjects contains the API server's objects that matter to policies.
type policyObjects struct {
	Pods            []corev1.Pod
	Nodes           []corev1.Node
	Namespaces      []corev1.Namespace
	Policies        []networkingv1.NetworkPolicy
	ClusterPolicies []map[string]any
}

// convert makes a cluster from the first few objects of each list.
func (o *policyObjects) convert() *networkpolicy.Cluster {
	const few = 6
	c := networkpolicy.NewCluster()
	for i := range o.Pods[:min(few, len(o.Pods))] {
		p := kube.ConvertPolicyPod(&o.Pods[i])
		c.Pods[p.Name] = p
	}
	for i := range o.Nodes[:min(few, len(o.Nodes))] {
		n := convertPolicyNode(&o.Nodes[i])
		c.Nodes[n.Name] = n.accepted(api.AcceptNodes([]api.NodeClaims{n.NodeClaims()}, api.ClusterFacts{}))
	}
	for i := range o.Namespaces[:min(few, len(o.Namespaces))] {
		n := &o.Namespaces[i]
		c.Namespaces[n.Name] = &api.Namespace{Name: n.Name, Labels: n.Labels, Terminating: n.DeletionTimestamp != nil}
	}
	for i := range o.Policies[:min(few, len(o.Policies))] {
		p := ConvertPolicy(&o.Policies[i])
		c.Policies[p.Name] = p
	}
	for _, one := range o.ClusterPolicies[:min(few, len(o.ClusterPolicies))] {
		u := &unstructured.Unstructured{Object: one}
		_ = convertPolicyStatus(u)
		p := ConvertClusterPolicy(u)
		c.ClusterPolicies[p.Name] = p
	}
	return c
}

// FuzzPolicies reads any JSON as objects for policies. The resulting table allows the same connections as the objects.
func FuzzPolicies(f *testing.F) {
	f.Add([]byte(`{"Pods":[{"metadata":{"namespace":"x","name":"a","labels":{"app":"a"}},"spec":{"nodeName":"here","containers":[{"ports":[{"name":"web","containerPort":80}]}]},
		"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.1"},{"ip":"fd00::1"}]}},
		{"metadata":{"namespace":"y","name":"b","labels":{"app":"b"}},"spec":{"nodeName":"here"},"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.2"},{"ip":"fd00::2"}]}}],
		"Nodes":[{"metadata":{"name":"here"},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}],
		"Namespaces":[{"metadata":{"name":"x","labels":{"team":"x"}}},{"metadata":{"name":"y","labels":{"team":"y"}}}],
		"Policies":[{"metadata":{"namespace":"x","name":"p"},"spec":{"podSelector":{"matchLabels":{"app":"a"}},"policyTypes":["Ingress","Egress"],
		"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"y"}},"podSelector":{}},{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.0.0.2/32"]}}],"ports":[{"protocol":"TCP","port":"web"}]}],
		"egress":[{"to":[{"podSelector":{"matchExpressions":[{"key":"app","operator":"NotIn","values":["b"]}]}}],"ports":[{"port":80,"endPort":90},{"protocol":"UDP"}]}]}}],
		"ClusterPolicies":[{"metadata":{"name":"c"},"spec":{"tier":"Admin","priority":3,"subject":{"namespaces":{}},
		"ingress":[{"name":"one","action":"Pass","from":[{"pods":{"namespaceSelector":{},"podSelector":{}}}],"protocols":[{"tcp":{"destinationPort":{"number":80}}}]}],
		"egress":[{"action":"Deny","to":[{"networks":["10.0.0.0/8"]},{"nodes":{}}]}]}}]}`))
	f.Add([]byte(`{"ClusterPolicies":[{"metadata":7,"spec":[],"status":{"conditions":[{"type":"Accepted"}]}},null]}`))
	f.Add([]byte(`{"Policies":[{"spec":{"podSelector":{"matchExpressions":[{"key":"a","operator":"Near"}]},"egress":[{"to":[{"ipBlock":{"cidr":"::/0","except":["::ffff:0.0.0.0/96"]}}]}]}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var o policyObjects
		if json.Unmarshal(text, &o) == nil {
			checkPolicies(t, o.convert())
		}
	})
}

func checkPolicies(t *testing.T, c *networkpolicy.Cluster) {
	t.Helper()
	const node = "here"
	c.Limited = c.LimitedOn(node)
	table, _ := policytest.Compiler(node, c).Compile()
	owners, all := map[netip.Addr][]*api.Pod{}, []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	for _, p := range c.Pods {
		for _, a := range p.Addrs {
			if owners[a] = append(owners[a], p); len(owners[a]) == 1 {
				all = append(all, a)
			}
		}
	}
	pod := func(a netip.Addr) *api.Pod {
		if len(owners[a]) == 1 {
			return owners[a][0]
		}
		return nil
	}
	for _, src := range all {
		for _, dst := range all {
			if src.Is4() != dst.Is4() || src == dst || len(owners[src]) > 1 || len(owners[dst]) > 1 {
				continue // the owner of an address that several pods have is not tested here
			}
			for _, port := range []uint16{80, 90} {
				got := networkpolicy.Lookup(table, networkpolicy.Packet{Src: src, Dst: dst, Proto: api.TCP, Port: port})
				for d, v := range []networkpolicy.Verdict{got.Egress, got.Ingress} {
					at := networkpolicy.Peering{Direction: networkpolicy.Direction(d), Pod: pod(src), Peer: dst, PeerPod: pod(dst), Proto: api.TCP, Port: port}
					if at.Direction == networkpolicy.Ingress {
						at.Pod, at.Peer, at.PeerPod = pod(dst), src, pod(src)
					}
					if at.Pod == nil || at.Pod.Node != node {
						continue
					}
					if want := c.Evaluate(at); v.Allows() != want.Allowed() {
						t.Errorf("%v to %v port %d, %v: the table says %+v, the objects %+v", src, dst, port, at.Direction, v, want)
					}
				}
			}
		}
	}
}
