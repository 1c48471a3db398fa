# A real service on a port, twice. Perl is part of every Debian.
job "web" {
  datacenters = ["*"]
  type        = "service"

  group "web" {
    count = 2

    network {
      port "http" {}
    }

    restart {
      attempts = 2
      interval = "1m"
      delay    = "1s"
      mode     = "fail"
    }

    task "server" {
      driver = "native"

      config {
        command = "/usr/bin/perl"
        args = ["-MIO::Socket::INET", "-e", <<-PERL
          $| = 1;
          $SIG{TERM} = sub { print "stopping\n"; exit 0 };
          my $port = $ENV{NOMAD_PORT_http};
          my $server = IO::Socket::INET->new(
            LocalAddr => "127.0.0.1", LocalPort => $port, Listen => 64, ReuseAddr => 1,
          ) or die "port $port: $!\n";
          print "listening on $port as $ENV{NOMAD_ALLOC_NAME}\n";
          my $served = 0;
          while (my $client = $server->accept) {
            my $request = <$client> // "";
            while (my $line = <$client>) { last if $line =~ /^\r?\n$/ }
            my $body = "hello from $ENV{NOMAD_ALLOC_NAME}, request " . ++$served . "\n";
            print $client "HTTP/1.1 200 OK\r\nContent-Length: " . length($body)
              . "\r\nConnection: close\r\n\r\n$body";
            close $client;
            $request =~ s/\r?\n//;
            print "$request 200\n";
          }
        PERL
        ]
      }

      resources {
        cpu    = 200
        memory = 64
      }

      kill_timeout = "5s"
    }
  }
}
