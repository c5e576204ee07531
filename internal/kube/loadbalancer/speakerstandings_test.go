package loadbalancer

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// standingsSaid is how a node's speaker stands, as its ConfigurationState says.
func (server *metallbAPI) standingsSaid(t *testing.T, node string) string {
	t.Helper()
	o, err := announceKind{resource: "configurationstates"}.client(server, "metallb-system").Get(t.Context(), "speaker-"+node, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, s := range convertSpeakerState(o).standings {
		about := s.Peer
		if s.Addr.IsValid() {
			about = s.Addr.String()
		}
		all = append(all, fmt.Sprintf("%s %s %v since %v: %s", s.Node, about, s.Up, s.Since.Unix(), s.Reason))
	}
	return strings.Join(all, "; ")
}

func (server *metallbAPI) untilStandings(t *testing.T, node, want string) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); server.standingsSaid(t, node) != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s; want %s", server.standingsSaid(t, node), want)
		}
	}
}

// TestSpeakerStandings: how a speaker stands is written beside what else its ConfigurationState says, whatever fails and
// whatever others do to it; a session that is lost is an event of the Node; and a speaker that ended says nothing.
func TestSpeakerStandings(t *testing.T) {
	server := newMetallbAPI()
	s := metallbStore(server)
	b := SubscribeSpeaker(s, "").SubscribeBGP()
	events := kube.NewRecorder(slog.New(slog.DiscardHandler), s.Config().Client, "node-1")
	w := b.Standings(events)
	runUntilEnd(t, s)
	waitFor(t, b.Synced(), "Synced")
	go func() { _ = b.Run(t.Context()) }()
	b.Report(nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()

	server.fail.Store(1)
	at := time.Unix(100, 5)
	w.SetGranted(announce.Standing{Node: "node-1", Up: true, Since: at})
	spine, tor := announce.Standing{Node: "node-1", Peer: "spine", Since: at, Reason: "no answer"}, announce.Standing{Node: "node-1", Peer: "tor", Up: true, Since: at}
	w.SetSessions([]announce.Standing{spine, tor})
	const well = "node-1  true since 100: ; node-1 spine false since 100: no answer; node-1 tor true since 100: "
	server.untilStandings(t, "node-1", well)
	if err := forgetStandings(ctx, s, b.name); err != nil { // an administrator
		t.Fatal(err)
	}
	server.untilStandings(t, "node-1", well)
	spine.Up, spine.Reason, tor.Up, tor.Since, tor.Reason = true, "", false, time.Unix(200, 0), "hold timer expired"
	w.SetSessions([]announce.Standing{spine, tor})
	w.SetSessions([]announce.Standing{spine, tor})
	server.untilStandings(t, "node-1", "node-1  true since 100: ; node-1 spine true since 100: ; node-1 tor false since 200: hold timer expired")
	runUntilEnd(t, events)
	awaitText(t, "the events", "Node node-1 Normal BGPSessionUp the session with BGPPeer spine is up; Node node-1 Warning BGPSessionDown the session with BGPPeer tor is down: hold timer expired", func() string {
		list, err := s.Config().Client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		for _, e := range list.Items {
			told = append(told, strings.Join([]string{e.Regarding.Kind, e.Regarding.Name, e.Type, e.Reason, e.Note}, " "))
		}
		slices.Sort(told)
		return strings.Join(told, "; ")
	})
	w.SetRefused([]announce.Standing{
		{Node: "node-1", Addr: netip.MustParseAddr("192.0.2.255"), Since: at, Reason: "broadcast"}, {Node: "node-1", Addr: netip.MustParseAddr("2001:db8::"), Since: at, Reason: "a printer has it"},
	})
	server.untilStandings(t, "node-1", "node-1  true since 100: ; node-1 192.0.2.255 false since 100: broadcast; node-1 2001:db8:: false since 100: a printer has it; node-1 spine true since 100: ; node-1 tor false since 200: hold timer expired")
	w.SetRefused(nil)
	w.SetGranted(announce.Standing{Node: "node-1", Up: true, Since: at, Reason: "no interface"})
	server.untilStandings(t, "node-1", "node-1  true since 100: no interface; node-1 spine true since 100: ; node-1 tor false since 200: hold timer expired")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	server.untilStandings(t, "node-1", "")
}

// TestStateGoesWithItsNode: the ConfigurationState of a speaker is the Node's, that of a release before and of a Node of
// the same name before too, so that the garbage collector removes it with the Node.
func TestStateGoesWithItsNode(t *testing.T) {
	server := newMetallbAPI(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metallb.io/v1beta1", "kind": "ConfigurationState",
		"metadata": map[string]any{"name": "speaker-node-1", "namespace": "metallb-system"}, "status": map[string]any{"result": "Valid"},
	}})
	s := metallbStore(server)
	b := SubscribeSpeaker(s, "").SubscribeBGP()
	runUntilEnd(t, s)
	waitFor(t, b.Synced(), "Synced")
	go func() { _ = b.Run(t.Context()) }()
	b.Report(nil)
	until := func(want string) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			o, err := announceKind{resource: "configurationstates"}.client(server, "metallb-system").Get(t.Context(), "speaker-node-1", metav1.GetOptions{})
			if apierrors.IsNotFound(err) && time.Now().Before(end) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			if all := o.GetOwnerReferences(); len(all) == 1 && all[0].Kind == "Node" && all[0].Name == "node-1" && string(all[0].UID) == want {
				return
			} else if time.Now().After(end) {
				t.Fatalf("its owners are %v, want the Node of UID %s", all, want)
			}
		}
	}
	until("1234")
	nodes := s.Config().Client.CoreV1().Nodes()
	if err := nodes.Delete(t.Context(), "node-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(60 * time.Second); b.speaker.ownUID() != "" && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	states := announceKind{resource: "configurationstates"}.client(server, "metallb-system")
	if err := states.Delete(t.Context(), "speaker-node-1", metav1.DeleteOptions{}); err != nil { // the garbage collector
		t.Fatal(err)
	}
	b.Report([]announce.PeerProblem{{Peer: "tor", Reason: "no"}})
	// Longer than the pause between two writes.
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if o, err := states.Get(t.Context(), "speaker-node-1", metav1.GetOptions{}); err == nil {
			t.Fatalf("the speaker of a deleted Node wrote %v, which would stay for ever", o.Object)
		}
	}
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "5678"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("5678")
}
