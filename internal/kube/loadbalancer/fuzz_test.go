package loadbalancer

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzAnnounced reads any JSON as each of the other kinds that others also write: Services of a load balancer, nodes,
// the objects of metallb.io, and the speakers' status objects.
func FuzzAnnounced(f *testing.F) {
	for _, text := range []string{
		`{"metadata":{"name":"pool"},"spec":{"addresses":["192.0.2.0/28","192.0.2.9-192.0.2.3","::/0"],"serviceAllocation":{"priority":-1,"namespaceSelectors":[{"matchExpressions":[{"key":"a","operator":"Near"}]}]}}}`,
		`{"metadata":{"name":"adv"},"spec":{"aggregationLength":0,"communities":["65000:1","large:1:2:3","name"],"peers":["a"],"nodeSelectors":[{}],"preferredNodeSelectors":[{"weight":7,"preference":{}}]}}`,
		`{"metadata":{"name":"peer"},"spec":{"myASN":65000,"peerASN":65001,"peerAddress":"192.0.2.1","holdTime":"90s","keepaliveTime":"1ms","password":"x","bfdProfile":"b","receiveInterval":10,"communities":[{"name":"a","value":"1:2"}]}}`,
		`{"metadata":{"name":"speaker-a","ownerReferences":[{"uid":"u"}]},"status":{"result":"Valid","conditions":[{"type":"SessionA","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z"}],"availableIPv4":"many"}}`,
		`{"metadata":{"name":"web","annotations":{"metallb.universe.tf/loadBalancerIPs":"192.0.2.1,fd00::/8","metallb.io/address-pool":"p"}},"spec":{"type":"LoadBalancer","loadBalancerIP":"::ffff:192.0.2.1","externalTrafficPolicy":"Local",
			"ports":[{"port":70000}],"healthCheckNodePort":70000},"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"},{"ip":"x"},{"hostname":"y"}]}}}`,
		`{"metadata":{"name":"n"},"spec":{"podCIDRs":["10.0.0.0/33"],"taints":[{"key":"a"}]},"status":{"addresses":[{"type":"InternalIP","address":"::ffff:10.0.0.1"},{"type":"ExternalIP","address":"fe80::1%a"}]}}`,
		`{"data":{"voters":"{\"nodes\":7}"}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		svc, node, voters, any := new(corev1.Service), new(corev1.Node), new(corev1.ConfigMap), map[string]any{}
		if json.Unmarshal(text, svc) == nil {
			_ = ConvertBalancer(svc, "")
			_ = convertBalanced(svc, "")
		}
		if json.Unmarshal(text, node) == nil {
			_ = convertAnnounceNode(node)
			_ = convertHost(node)
		}
		if json.Unmarshal(text, voters) == nil {
			_ = convertVoters(voters)
		}
		if json.Unmarshal(text, &any) == nil {
			checkAnnounced(t, &unstructured.Unstructured{Object: any})
		}
	})
}

func checkAnnounced(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	checkProblems(t, convertL2Advertisement(o).Problems)
	checkProblems(t, convertBGPAdvertisement(o).Problems)
	checkProblems(t, convertBGPPeer(o).Problems)
	checkProblems(t, convertBFDProfile(o).Problems)
	checkProblems(t, convertCommunity(o).Problems)
	_ = convertPoolUse(o)
	_ = convertSpeakerState(o)
	pool := convertPool(o)
	checkProblems(t, pool.Problems)
	for _, r := range pool.Ranges {
		if !r.Contains(r.First) || !r.Contains(r.Last) {
			t.Errorf("range %v does not contain its ends", r)
		}
	}
}
