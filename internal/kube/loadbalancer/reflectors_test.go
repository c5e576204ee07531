package loadbalancer

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// TestReflectorLabel: the label of a Node object makes its speaker a route reflector. The label of another Node gives a
// session with the reflector. A value that is no ASN is reported in the speaker's ConfigurationState.
func TestReflectorLabel(t *testing.T) {
	const label = announce.ReflectorLabel
	node := func(i int, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), UID: types.UID(fmt.Sprint(i)), Labels: labels}, Spec: corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i)}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.18.0.%d", i)}}}}
	}
	custom := newMetallbAPI()
	written := make(chan string, 100)
	custom.PrependReactor("patch", "configurationstates", func(a clienttesting.Action) (bool, runtime.Object, error) {
		written <- string(a.(clienttesting.PatchAction).GetPatch())
		return true, &unstructured.Unstructured{}, nil
	})
	s := kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), NodeName: "node-1", Custom: custom, LoadBalancerNamespace: "metallb-system",
		Client: fake.NewClientset(node(1, map[string]string{label: "64512"}), node(2, nil), node(3, map[string]string{label: "64513"}), node(4, map[string]string{label: "abc"}))})
	b := SubscribeSpeaker(s, "").SubscribeBGP()
	runUntilEnd(t, s)
	waitFor(t, b.Synced(), "Synced")
	decide := func(self string) announce.BGPDecision {
		in := b.BGP()
		in.Node, in.ReflectorPort, in.OnLink = self, 10283, func(netip.Addr) bool { return true }
		return announce.DecideBGP(in)
	}
	if d := decide("node-1"); d.Reflector == nil || d.Reflector.ASN != 64512 || !slices.ContainsFunc(d.Reflector.Clients, func(c announce.Client) bool { return c.Address.Addr().String() == "172.18.0.2" }) {
		t.Errorf("the node with the label is %+v", d.Reflector)
	}
	d := decide("node-2")
	with := ""
	for _, session := range d.Sessions {
		with += fmt.Sprintf("%v %d; ", session.Address, session.PeerASN)
	}
	if d.Reflector != nil || with != "172.18.0.1:10283 64512; 172.18.0.3:10283 64513; " {
		t.Errorf("a node without the label is %+v, and has sessions with %s", d.Reflector, with)
	}
	go func() { _ = b.Run(t.Context()) }()
	b.Report(decide("node-4").Problems)
	for end := time.After(30 * time.Second); ; {
		select {
		case got := <-written:
			if strings.Contains(got, `"errorSummary":"Node node-4: label `+label+`: \"abc\" is no ASN`) {
				return
			}
		case <-end:
			t.Fatal("nothing of the label that is no ASN was written")
		}
	}
}
