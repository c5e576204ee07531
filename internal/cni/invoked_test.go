package cni

import "testing"

func TestInvoked(t *testing.T) {
	for _, test := range []struct {
		name, argv0, command, path string
		want                       bool
	}{
		{name: "the installed plugin", argv0: "/opt/cni/bin/fairway-cni", want: true},
		{name: "the installed plugin without a directory", argv0: "fairway-cni", want: true},
		{name: "our own name in a plugin directory", argv0: "/opt/cni/bin/fairway", command: "ADD", path: "/x:/opt/cni/bin", want: true},
		{name: "our own name elsewhere", argv0: "/usr/bin/fairway", command: "ADD", path: "/opt/cni/bin"},
		{name: "our own name and no command", argv0: "/opt/cni/bin/fairway", path: "/opt/cni/bin"},
		{name: "another name", argv0: "/opt/cni/bin/bridge", command: "ADD", path: "/opt/cni/bin"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("CNI_COMMAND", test.command)
			t.Setenv("CNI_PATH", test.path)
			if got := Invoked(test.argv0); got != test.want {
				t.Errorf("Invoked(%q) = %v, want %v", test.argv0, got, test.want)
			}
		})
	}
}
