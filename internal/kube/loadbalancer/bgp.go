package loadbalancer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// passwordSecretType is the type of the Secrets that a BGPPeer may name, as in MetalLB. passwordKey is their key with
// the password.
const (
	passwordSecretType = corev1.SecretTypeBasicAuth
	passwordKey        = corev1.BasicAuthPasswordKey
)

// speakerOwner is the field manager of the speakers.
const speakerOwner = "fairway-speaker"

// BGP is a subscription to the input of the BGP announcements. It shares the feeds of a Speaker and has its own gate,
// so that missing BGP objects do not delay layer 2.
type BGP struct {
	*kube.Subscription
	speaker *Speaker
	secrets *kube.Feed[password]
	states  *kube.Feed[speakerState] // of this node only
	state   *kube.StatusWriter[configState]
	name    api.Name // of our ConfigurationState
	config  configMetrics
}

type password struct{ text string }

// SubscribeBGP returns the BGP subscription of a speaker.
func (v *Speaker) SubscribeBGP() *BGP {
	s := v.store
	b := &BGP{Subscription: s.Subscribe("speaker: BGP"), speaker: v}
	b.secrets = kube.Open(s, kube.Kind[*corev1.Secret, password]{
		Name: "secrets", Without: "no session with a BGPPeer that names a passwordSecret", Object: &corev1.Secret{}, Client: kube.From(s.Config().Client.CoreV1().Secrets(s.Config().LoadBalancerNamespace)),
		Only: metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("type", string(passwordSecretType)).String()},
		Trim: func(o *corev1.Secret) *password {
			if o.Type != passwordSecretType || len(o.Data[passwordKey]) == 0 {
				return nil
			}
			return &password{string(o.Data[passwordKey])}
		},
	})
	b.openState()
	f := v.feeds
	b.Need([]kube.Input{
		v.services.Marks(b.Subscription), s.SliceFeed().Marks(b.Subscription), v.nodes.Marks(b.Subscription),
		f.pools.Marks(b.Subscription), f.bgp.Marks(b.Subscription), f.peers.Marks(b.Subscription), f.bfd.Marks(b.Subscription), f.communities.Marks(b.Subscription),
	}, []kube.Input{b.secrets.Marks(b.Subscription), s.RangeFeed().Marks(b.Subscription), f.l2.Marks(b.Subscription)})
	return b
}

// openState makes the writer of this speaker's ConfigurationState.
func (b *BGP) openState() {
	s := b.speaker.store
	b.name = stateOfSpeaker(s, s.Config().NodeName)
	states := metallbKind(s, "configurationstates", convertSpeakerState)
	states.Only.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, b.name.Name).String()
	b.states = kube.Open(s, states)
	b.state = kube.NewStatusWriter(kube.StatusConfig[configState]{Log: s.Config().Log, Owner: speakerOwner, Kind: "configurationstates",
		Apply: b.applyState,
		// Without its Node, which owns the object, it is not written: it would stay for ever.
		Have: func(name api.Name) (configState, bool) {
			if b.speaker.ownUID() == "" {
				return configState{}, false
			}
			c, ok := b.states.Get(name)
			if ok && c.owner != b.speaker.ownUID() {
				return configState{}, true
			}
			return ptr.Deref(c, speakerState{}).configState, ok
		},
		Make: func() bool { return b.states.Input().Listed() && b.speaker.ownUID() != "" },
	})
	b.speaker.nodes.Follow(func(name api.Name, _, _ *announce.Node, _ int64) {
		if name.Name == s.Config().NodeName {
			b.state.Changed(b.name)
		}
	})
	b.states.Follow(func(name api.Name, _, _ *speakerState, _ int64) { b.state.Changed(name) })
	b.states.OnSettle(func() { b.state.Changed(b.name) })
}

// applyState writes the ConfigurationState. Its owner is the Node, so it disappears with the Node.
func (b *BGP) applyState(ctx context.Context, name api.Name, c configState, how metav1.ApplyOptions) error {
	s := b.speaker.store
	meta := labelled(map[string]string{"metallb.io/component-type": "speaker", "metallb.io/node-name": s.Config().NodeName})
	if uid := b.speaker.ownUID(); uid != "" {
		meta["ownerReferences"] = ownedByNode(s.Config().NodeName, uid)
	}
	return applyMetallb(ctx, s, "configurationstates", "ConfigurationState", name, how, meta, map[string]any{"result": c.Result, "errorSummary": c.Summary})
}

// Run writes the reported state until ctx ends, which is no error.
func (b *BGP) Run(ctx context.Context) error { return b.state.Run(ctx) }

// Report writes the problems of BGPPeers and advertisements into this speaker's ConfigurationState.
func (b *BGP) Report(problems []announce.PeerProblem) {
	state := configState{Result: resultValid}
	if all := b.problems(problems); len(all) > 0 {
		state = configState{resultInvalid, api.Cut(strings.Join(all, "\n"), 16<<10)}
	}
	b.config.set(state)
	b.state.Set(b.name, state)
}

// problems returns a sorted message for each problem of BGPPeers and advertisements.
func (b *BGP) problems(peers []announce.PeerProblem) (all []string) {
	for _, p := range peers {
		about := "BGPPeer " + p.Peer
		if node, ok := announce.PeerNode(p.Peer); ok {
			about = "Node " + node
		}
		text := about + ": " + p.Reason
		if p.NoSession {
			text += "; there is no session"
		}
		all = append(all, text)
	}
	invalid := func(kind, name string, problems []api.Problem) {
		for _, p := range problems {
			all = append(all, kind+" "+name+": "+p.Message+"; it announces nothing")
		}
	}
	for _, a := range b.speaker.L2Advertisements() {
		invalid("L2Advertisement", a.Name, a.Problems)
	}
	for _, a := range b.speaker.BGPAdvertisements() {
		invalid("BGPAdvertisement", a.Name, a.Problems)
		for _, p := range a.Ignored {
			all = append(all, "BGPAdvertisement "+a.Name+": "+p.Message)
		}
	}
	all = append(all, b.speaker.withoutPool()...)
	slices.Sort(all)
	return all
}

// withoutPool returns a message for each pool that an advertisement names and that does not exist.
func (v *Speaker) withoutPool() (all []string) {
	exist := map[string]bool{}
	for _, p := range v.Pools() {
		exist[p.Name] = true
	}
	check := func(kind, name string, pools []string) {
		for _, pool := range pools {
			if !exist[pool] {
				all = append(all, fmt.Sprintf("%s %s: there is no IPAddressPool %s", kind, name, kube.ReadAnnotation(pool)))
			}
		}
	}
	for _, a := range v.L2Advertisements() {
		check("L2Advertisement", a.Name, a.IPAddressPools)
	}
	for _, a := range v.BGPAdvertisements() {
		check("BGPAdvertisement", a.Name, a.IPAddressPools)
	}
	return all
}

// Metrics reports whether the metallb.io objects have been read, and whether all of them are valid.
func (b *BGP) Metrics() prometheus.Collector { return &b.config }

// BGP returns the current input of the BGP decision. The caller adds its node and the state of its kernel.
func (b *BGP) BGP() announce.BGPInput {
	v := b.speaker
	return announce.BGPInput{
		Input: v.Input(), Advertisements: v.BGPAdvertisements(), Peers: v.BGPPeers(), BFDProfiles: v.BFDProfiles(), Communities: v.Communities(),
		LocalEndpoints: func(name api.Name, is4 bool) int {
			return announce.CountEndpoints(v.store.SliceFeed().Of(name), v.store.Config().NodeName, is4)
		},
		Password: func(secret string) (string, bool) {
			p, ok := b.secrets.Get(api.Name{Namespace: v.store.Config().LoadBalancerNamespace, Name: secret})
			if !ok {
				return "", false
			}
			return p.text, true
		},
	}
}
