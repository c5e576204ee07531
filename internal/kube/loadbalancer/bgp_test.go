package loadbalancer

import (
	"log/slog"
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
		Client: fake.NewClientset(secret("bgp", corev1.SecretTypeBasicAuth), secret("other", corev1.SecretTypeOpaque)),
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
