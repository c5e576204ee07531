package loadbalancer

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// TestAdvertisementsWithoutPool: a speaker's ConfigurationState names the pools that advertisements name and that do not
// exist, and invalid L2Advertisements.
func TestAdvertisementsWithoutPool(t *testing.T) {
	named := func(pools ...any) map[string]any { return map[string]any{"ipAddressPools": pools} }
	custom := newMetallbAPI(
		metallbObject("v1beta1", "IPAddressPool", "front", map[string]any{"addresses": []any{"192.0.2.0/24"}}),
		metallbObject("v1beta1", "L2Advertisement", "right", named("front")),
		metallbObject("v1beta1", "L2Advertisement", "misspelt", named("front", "frnt")),
		metallbObject("v1beta1", "BGPAdvertisement", "gone", named("back")),
		metallbObject("v1beta1", "L2Advertisement", "odd", map[string]any{"preferredNodeSelectors": []any{map[string]any{"weight": int64(0), "preference": map[string]any{}}}}),
	)
	s := kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), NodeName: "node-1", Custom: custom, LoadBalancerNamespace: "metallb-system", Client: fake.NewClientset()})
	b := SubscribeSpeaker(s, "").SubscribeBGP()
	runUntilEnd(t, s)
	waitFor(t, b.Synced(), "Synced")
	for end := time.Now().Add(30 * time.Second); len(b.speaker.L2Advertisements()) < 3 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	got := b.problems([]announce.PeerProblem{{Peer: "tor", Reason: "no"}})
	want := []string{
		"BGPAdvertisement gone: there is no IPAddressPool back", "BGPPeer tor: no", "L2Advertisement misspelt: there is no IPAddressPool frnt",
		"L2Advertisement odd: preferredNodeSelectors[0]: weight 0 is not in 1-100; it announces nothing",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestBGP: a speaker's BGP reads its objects and the passwords that BGPPeers may name. It writes its errors into a
// ConfigurationState.
func TestBGP(t *testing.T) {
	custom := newMetallbAPI(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metallb.io/v1beta2", "kind": "BGPPeer", "metadata": map[string]any{"name": "tor", "namespace": "metallb-system"},
		"spec": map[string]any{"myASN": int64(64501), "peerASN": int64(64500), "peerAddress": "172.18.0.1"},
	}})
	written := make(chan string, 100)
	custom.PrependReactor("patch", "configurationstates", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p := a.(clienttesting.PatchAction)
		written <- p.GetName() + " " + p.GetSubresource() + " " + string(p.GetPatch())
		return true, &unstructured.Unstructured{}, nil
	})
	secret := func(name string, kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: name}, Type: kind, Data: map[string][]byte{"password": []byte("hush")}}
	}
	s := kube.New(kube.Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "node-1", Custom: custom, LoadBalancerNamespace: "metallb-system",
		Client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "1234"}}, secret("bgp", corev1.SecretTypeBasicAuth), secret("other", corev1.SecretTypeOpaque)),
	})
	b := SubscribeSpeaker(s, "").SubscribeBGP()
	runUntilEnd(t, s)
	waitFor(t, b.Synced(), "Synced")
	in := b.BGP()
	if len(in.Peers) != 1 || in.Peers[0].PeerPort != 179 {
		t.Errorf("read %v", in.Peers)
	}
	if text, ok := in.Password("bgp"); !ok || text != "hush" {
		t.Errorf("the password is %q, %v", text, ok)
	}
	if _, ok := in.Password("other"); ok {
		t.Error("a Secret of another type is a password")
	}
	go func() { _ = b.Run(t.Context()) }()
	b.Report([]announce.PeerProblem{{Peer: "tor", NoSession: true, Reason: "vrf is not supported"}})
	const want = "BGPPeer tor: vrf is not supported; there is no session"
	for end := time.After(30 * time.Second); ; {
		select {
		case got := <-written:
			if strings.HasPrefix(got, "speaker-node-1 status") && strings.Contains(got, want) && strings.Contains(got, `"Invalid"`) {
				return
			}
		case <-end:
			t.Fatal("nothing of it was written")
		}
	}
}
