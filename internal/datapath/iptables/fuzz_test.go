package iptables

import "testing"

// FuzzRule: parse reads every text, and reads the text of its own rule as an equal rule.
func FuzzRule(f *testing.F) {
	f.Add(`-d 10.96.0.1/32 -p tcp -m comment --comment "default/kubernetes:https cluster IP" -m tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y`)
	f.Add(`! -s 10.244.0.0/16 -p udp -m comment --comment "quo\"te" -m udp ! --dport 53 -m connmark ! --mark 0xfb000001 -j CONNMARK --set-xmark 0xfa000001/0xffffffff`)
	f.Add(`! -g`)
	f.Fuzz(func(t *testing.T, text string) {
		r := parse(text)
		_, _ = r.destination()
		if r.unknown || text != r.String() {
			return
		}
		if again := parse(r.String()); again != r {
			t.Errorf("%+v is read again as %+v", r, again)
		}
	})
}
