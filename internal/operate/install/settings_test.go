package install

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/deploy"
	"github.com/fairway-net/fairway/internal/kube/objects"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

// TestSettingsStay: every setting can be set. An upgrade keeps it, also if the ConfigMap was edited, and an empty value
// gives the default back.
func TestSettingsStay(t *testing.T) {
	api := newFake(t, cluster(t, "kubeadm"))
	var out bytes.Buffer
	i := installer(api, &out)
	o := tagged
	o.Set = map[string]string{"COUNT_TRAFFIC": "true", "NODEPORT_ADDRESSES": "192.0.2.0/24,localhost", "METRICS_BIND_ADDRESS": "node", "LB_CLASS": "fairway.net/lb"}
	if err := i.Install(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if want := "note: LB_CLASS has no effect without component load-balancer or servicelb or edge\n"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, &out)
	}
	data := func() map[string]string { return liveSettings(t, api) }
	first := data()
	for key, value := range o.Set {
		if first[key] != value {
			t.Errorf("%s is %q, was set to %q", key, first[key], value)
		}
	}
	set := func(edit map[string]any, o Options) map[string]string {
		t.Helper()
		conf, err := api.Get(t.Context(), objects.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: "kube-system", Name: agentName})
		if err != nil {
			t.Fatal(err)
		}
		values := conf.Object["data"].(map[string]any)
		for key, value := range edit {
			if values[key] = value; value == nil {
				delete(values, key)
			}
		}
		api.put(conf)
		o.Image = product + ":v2"
		if err := i.Upgrade(t.Context(), o); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		return data()
	}
	if got := set(nil, Options{}); fmt.Sprint(got) != fmt.Sprint(first) {
		t.Errorf("after an upgrade: %v, before %v", got, first)
	}
	got := set(map[string]any{"SYNC_PERIOD": "9s", "COUNT_TRAFFIC": nil, "SYNC_PERIODS": "9s"}, Options{})
	if got["SYNC_PERIOD"] != "9s" || got["COUNT_TRAFFIC"] != "" || got["METRICS_BIND_ADDRESS"] != "node" {
		t.Errorf("after an edit: %v", got)
	}
	if want := "note: no program reads these keys of ConfigMap fairway-agent: SYNC_PERIODS"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, &out)
	}
	got = set(map[string]any{"SYNC_PERIODS": nil}, Options{Set: map[string]string{"METRICS_BIND_ADDRESS": "", "LOG_FORMAT": "", "REFUSE_EXTERNAL_IPS": "true"}})
	if got["METRICS_BIND_ADDRESS"] != "" || got["LOG_FORMAT"] != "text" || got["SYNC_PERIOD"] != "9s" {
		t.Errorf("after defaults: %v", got)
	}
}

// TestSettingsAreChecked: a wrong setting is refused before anything is applied.
func TestSettingsAreChecked(t *testing.T) {
	for set, want := range map[string]string{
		"COUNT_TRAFIC=true":                "--set COUNT_TRAFIC: there is no such setting [choose from CLUSTER_CIDR, ",
		"COUNT_TRAFFIC=yes":                `refused: COUNT_TRAFFIC: "yes" is not one of true, false`,
		"NODEPORT_ADDRESSES=first":         `"first" is not prefixes with commas between them, as 10.244.0.0/16, or words: primary, all, localhost`,
		"SYNC_PERIOD=9":                    `"9" is not a duration, as 1m30s`,
		"POD_FRAGMENTS=-1":                 `"-1" is not a number, 0 or more`,
		"METRICS_BIND_ADDRESS=nodes:10249": `"nodes:10249" is not an address: IP, IP:port, or node or node:port for the address of each node`,
	} {
		api := newFake(t, cluster(t, "kubeadm"))
		o, err := tagged, error(nil)
		if o.Set, err = settings.SplitPairs([]string{set}); err != nil {
			t.Fatal(err)
		}
		before := api.text()
		if err := installer(api, new(bytes.Buffer)).Install(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
		if api.text() != before {
			t.Errorf("%s: something was applied", set)
		}
	}
}

// TestRestarts: the pods of a program are replaced when its settings change, and no others.
func TestRestarts(t *testing.T) {
	s := Settings{Image: product + ":v1", DNS: true, Values: settings.Defaults(), Components: []string{"load-balancer", "gateway"}}
	before := hashes(t, s)
	for key, want := range map[string][]string{
		"COUNT_TRAFFIC": {"fairway-agent"}, "LB_CLASS": {"fairway-controller", "fairway-speaker"}, "CLUSTER_DOMAIN": {"fairway-dns"},
		"LOG_FORMAT":         {"fairway-agent", "fairway-controller", "fairway-dns", "fairway-gateway", "fairway-speaker"},
		"GATEWAY_ACCESS_LOG": {"fairway-gateway"},
	} {
		s.Values = settings.Defaults()
		s.Values[key] = "other"
		var changed []string
		for name, hash := range hashes(t, s) {
			if hash != before[name] {
				changed = append(changed, name)
			}
		}
		slices.Sort(changed)
		if !slices.Equal(changed, want) {
			t.Errorf("%s replaces the pods of %v, want %v", key, changed, want)
		}
	}
}

// hashes returns the annotation of each workload's pods.
func hashes(t *testing.T, s Settings) map[string]string {
	t.Helper()
	all, err := Render(deploy.Files, s)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, o := range workloads(all) {
		found[o.GetName()], _, _ = unstructured.NestedString(o.Object, "spec", "template", "metadata", "annotations", settingsHash)
	}
	return found
}

// liveSettings returns the data of the ConfigMap.
func liveSettings(t *testing.T, api API) map[string]string {
	t.Helper()
	o, err := api.Get(t.Context(), objects.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: "kube-system", Name: agentName})
	if err != nil || o == nil {
		t.Fatalf("%v, %v", o, err)
	}
	data, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	return data
}
